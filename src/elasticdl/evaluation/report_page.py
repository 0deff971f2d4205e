"""Writes an evaluation report as one HTML page that needs no network, script or other file.

It shows headline numbers, per-class results, the confusion matrix, the distribution of each metric,
and the worst examples with their pictures. `report_tables.py` computes these; this module only
displays them. All names that come from the user are escaped.

Callers: sessions and `elasticdl evaluate --report`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from elasticdl.artifacts.folder import OutputFolder
from elasticdl.evaluation.png import as_picture, data_uri, smaller
from elasticdl.evaluation.report_tables import Report, ReportSummary
from elasticdl.evaluation.report_writer import METRIC

if TYPE_CHECKING:
    import os

    from elasticdl.evaluation.report_tables import ClassRow

PictureOf: TypeAlias = "Callable[[int, str], Any]"
"""`(row, data_id)` -> an array (H, W) or (H, W, C), or None if there is no picture."""

# With more classes the table would not fit a screen; the most frequent confusions show more.
_MAX_MATRIX = 25
_MAX_PAIRS = 25
_MAX_CLASSES = 200
_NUM_BINS = 30
_PICTURE_SIDE = 96
_NUM_WORST = 24


def write_page(
    report: Report | str | os.PathLike[str],
    folder: OutputFolder | str | os.PathLike[str],
    *,
    name: str = "report",
    title: str = "Evaluation report",
    picture_of: PictureOf | None = None,
    class_names: Sequence[str] | None = None,
    num_worst: int = _NUM_WORST,
) -> str:
    """Write `<name>.html` and return its path or URI.

    Args:
        report: A report, or its path.
        folder: Folder of the page.
        name: Name of the file, without extension.
        title: Heading of the page.
        picture_of: Function (row number, `data_id`) -> picture of an example, as an array that
            `png.as_picture` takes, or None. Called for the worst examples only.
        class_names: Names of the classes, by number.
        num_worst: Number of worst examples shown for each metric.

    Raises:
        OutputError: The page cannot be written.
        NoDataError: There is no such report.
        CorruptDataError: The file is not a report.
    """
    report = report if isinstance(report, Report) else Report(report)
    folder = folder if isinstance(folder, OutputFolder) else OutputFolder(folder)
    text = _Page(report, picture_of, class_names, num_worst).text(title)
    folder.write_bytes(f"{name}.html", text.encode(errors="xmlcharrefreplace"))
    return folder.where(f"{name}.html")


class _Page:
    def __init__(
        self,
        report: Report,
        picture_of: PictureOf | None,
        class_names: Sequence[str] | None,
        num_worst: int,
    ) -> None:
        self._report = report
        self._picture_of = picture_of
        self._class_names = class_names or ()
        self._has_classes = report.facts["num_classes"] > 0
        self._pictures: dict[int, str] = {}
        self._largest_first = {name: report.is_worse_when_larger(name) for name in report.metrics}
        self._worst_rows = {
            name: report.worst(name, num_worst, largest=largest)
            for name, largest in self._largest_first.items()
        }
        # Read together, because rows of many metrics lie in the same few groups.
        numbers = sorted({number for rows in self._worst_rows.values() for number in rows})
        self._rows = dict(zip(numbers, report.rows(numbers), strict=True))

    def text(self, title: str) -> str:
        facts = self._report.facts
        summaries = {name: self._report.summary(name) for name in self._report.metrics}
        notes = "".join(f"<li>{escape(note)}</li>" for note in facts["notes"])
        classes = self._report.classes()
        reading = escape(facts["reading"].capitalize())
        about = (
            f"Split <b>{escape(facts['split'])}</b>, {self._report.num_rows:,} examples. {reading}."
        )
        style = (files("elasticdl.evaluation") / "report_page.css").read_text("utf-8")
        return "\n".join(
            [
                "<!doctype html>",
                '<html lang="en"><head><meta charset="utf-8">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                '<meta name="color-scheme" content="light dark">',
                f"<title>{escape(title)}</title><style>{style}</style></head><body>",
                f"<header><h1>{escape(title)}</h1><p>{about}</p></header><main>",
                f'<ul class="notes" aria-label="Notes">{notes}</ul>' if notes else "",
                self._headline(summaries),
                self._confusion(classes),
                self._classes(classes),
                *(
                    self._distribution(name, summaries[name]) + self._worst(name)
                    for name in self._report.metrics
                ),
                "</main></body></html>",
            ]
        )

    def _class(self, number: Any) -> str:
        known = isinstance(number, int) and 0 <= number < len(self._class_names)
        return escape(str(self._class_names[number])) if known else escape(_number(number))

    # --- sections -----------------------------------------------------------------------------

    def _headline(self, summaries: dict[str, ReportSummary]) -> str:
        cards = [_card("examples", f"{self._report.num_rows:,}", "")]
        right, known = self._report.accuracy
        if known:
            missed = f"{known - right:,} of {known:,} are wrong"
            cards.append(_card("accuracy", _percent(right / known), missed))
        for name, summary in summaries.items():
            missing = self._report.num_rows - summary.count
            spread = f"median {_number(summary.quartiles[1])}"
            beside = f"{spread}; {missing:,} without a value" if missing else spread
            cards.append(_card(f"mean {name}", _number(summary.mean), beside))
        return _section("In short", f'<dl class="cards">{"".join(cards)}</dl>')

    def _confusion(self, classes: Sequence[ClassRow]) -> str:
        counts = self._report.confusion()
        if not counts:
            return ""
        if len(classes) > _MAX_MATRIX:
            return self._confused_pairs(counts)
        numbers = [row.name for row in classes]
        largest = max(counts.values())
        head = "".join(f'<th scope="col">{self._class(c)}</th>' for c in numbers)
        lines = []
        for label in numbers:
            cells = "".join(_cell(counts.get((label, p), 0), largest, label == p) for p in numbers)
            lines.append(f'<tr><th scope="row">{self._class(label)}</th>{cells}</tr>')
        about = (
            "Number of examples by label (row) and prediction (column). Correct predictions are "
            "framed; a stronger colour means a larger count."
        )
        table = (
            '<table class="matrix"><thead><tr><th scope="col">label \\ predicted</th>'
            f"{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
        )
        return _section("Confusions", _wide(about, table))

    def _confused_pairs(self, counts: dict[tuple[int, int], int]) -> str:
        wrong = sorted(((n, pair) for pair, n in counts.items() if pair[0] != pair[1]), key=_first)
        rows = (
            (self._class(label), self._class(predicted), f"{count:,}")
            for count, (label, predicted) in wrong[:_MAX_PAIRS]
        )
        shown = f"The {min(len(wrong), _MAX_PAIRS)} pairs that are confused most often."
        return _section(
            "Confusions", _table(shown, ["label", "predicted", "examples"], rows, texts=2)
        )

    def _classes(self, classes: Sequence[ClassRow]) -> str:
        if not classes:
            return ""
        # Show the worst first if not all can be shown.
        shown = list(classes)
        if len(classes) > _MAX_CLASSES:
            shown = sorted(classes, key=lambda row: row.f1)[:_MAX_CLASSES]
        rows = []
        for row in shown:
            low, high = row.recall_interval
            between = "" if math.isnan(low) else f"{_percent(low)} to {_percent(high)}"
            values = (row.precision, row.recall, row.f1)
            rows.append(
                (
                    self._class(row.name),
                    f"{row.support:,}",
                    *("" if math.isnan(v) else _percent(v) for v in values),
                    between,
                )
            )
        caption = (
            "Support is the number of examples with the label; the interval is the Wilson score "
            "interval."
        )
        if len(shown) < len(classes):
            caption = f"The {len(shown)} of {len(classes)} classes with the lowest F1. {caption}"
        head = ["class", "support", "precision", "recall", "F1", "recall, 95 % interval"]
        return _section("Classes", _table(caption, head, rows, texts=1))

    def _distribution(self, name: str, summary: ReportSummary) -> str:
        values = self._report.metric(name)
        finite = values[np.isfinite(values)]
        heading = f"Distribution of {escape(name)}"
        if not len(finite):
            return _section(heading, "<p>No example has a value.</p>")
        facts = [
            ("mean", summary.mean),
            ("standard deviation", summary.std),
            ("least", summary.min),
            ("25 %", summary.quartiles[0]),
            ("median", summary.quartiles[1]),
            ("75 %", summary.quartiles[2]),
            ("largest", summary.max),
        ]
        row = [tuple(_number(value) for _, value in facts)]
        table = _table("", [label for label, _ in facts], row, texts=0)
        return _section(heading, _histogram(name, finite) + table)

    def _worst(self, name: str) -> str:
        largest, numbers = self._largest_first[name], self._worst_rows[name]
        if not numbers:
            return ""
        head = ["example", "value", "label", "predicted", "confidence"]
        rows = [self._rows[number] for number in numbers]
        pictures = [self._picture(n, row["data_id"]) for n, row in zip(numbers, rows, strict=True)]
        lines = []
        for row, picture in zip(rows, pictures, strict=True):
            source = f"<br><small>{escape(row['source'])}</small>" if row["source"] else ""
            verdict = {True: " (right)", False: " (wrong)", None: ""}[row["correct"]]
            share = row["confidence"]
            line = [
                f"<b>{escape(row['data_id'])}</b>{source}",
                _number(row[METRIC + name]),
                self._class(row["label"]) if self._has_classes else _number(row["label"]),
                (self._class if self._has_classes else _number)(row["prediction"]) + verdict,
                "" if share is None else _percent(share),
            ]
            lines.append([picture, *line] if any(pictures) else line)
        if any(pictures):
            head.insert(0, "picture")
        order = "Largest values first." if largest else "Smallest values first."
        table = _table(order, head, lines, texts=2 if any(pictures) else 1)
        return _section(f"Worst examples by {escape(name)}", table)

    def _picture(self, number: int, data_id: str) -> str:
        if self._picture_of is None:
            return ""
        if number not in self._pictures:
            given = self._picture_of(number, data_id)
            picture = None if given is None else as_picture(given)
            if picture is None:
                self._pictures[number] = ""
            else:
                small = smaller(picture, _PICTURE_SIDE)
                self._pictures[number] = (
                    f'<img src="{data_uri(small)}" alt="input of {escape(data_id, quote=True)}" '
                    'width="72" height="72">'
                )
        return self._pictures[number]


# --- pieces -----------------------------------------------------------------------------------


def _first(item: tuple[int, tuple[int, int]]) -> tuple[int, tuple[int, int]]:
    return (-item[0], item[1])


def _section(heading: str, body: str) -> str:
    return f"<section><h2>{heading}</h2>{body}</section>"


def _card(name: str, value: str, beside: str) -> str:
    small = f"<dd><small>{escape(beside)}</small></dd>" if beside else ""
    return f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd>{small}</div>"


def _wide(about: str, table: str) -> str:
    # A region can be scrolled with the keyboard only if it can take the focus; its description
    # stays visible.
    label = escape(about or "Numbers", quote=True)
    shown = f'<p class="about">{about}</p>' if about else ""
    return f'{shown}<div class="wide" role="region" tabindex="0" aria-label="{label}">{table}</div>'


def _table(about: str, head: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> str:
    """Return an HTML table.

    Args:
        about: Description of the table, for screen readers.
        head: Titles of the columns, as HTML.
        rows: The cells, as HTML.
        texts: Number of leading columns that contain text; the others contain numbers.
    """
    kinds = ["" if i < texts else ' class="number"' for i in range(len(head))]
    titles = "".join(
        f'<th scope="col"{kind}>{name}</th>' for name, kind in zip(head, kinds, strict=True)
    )
    lines = "".join(
        "<tr>" + "".join(f"<td{k}>{c}</td>" for c, k in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return _wide(about, f"<table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>")


def _cell(count: int, largest: int, right: bool) -> str:
    # By the square root, so that one confusion among thousands is visible.
    heat = round(100 * math.sqrt(count / largest))
    kind = ' class="right"' if right else ""
    shown = f"{count:,}" if count else '<span class="none">0</span>'
    return f'<td{kind} style="--heat:{heat}%">{shown}</td>'


def _histogram(name: str, values: np.ndarray[Any, Any]) -> str:
    least, most = float(values.min()), float(values.max())
    if least == most:
        return f"<p>Every example has the value {_number(least)}.</p>"
    if math.isinf(most - least):
        return "<p>The values are too far apart to be plotted.</p>"
    counts, edges = np.histogram(values, _NUM_BINS)
    width, height = 20, 160
    highest = int(counts.max())
    bars = []
    for i, count in enumerate(counts.tolist()):
        # Every non-empty bar is visible, even one example among a million.
        tall = max(1.5, height * count / highest) if count else 0
        predicted = f"{_number(edges[i])} to {_number(edges[i + 1])}: {count:,} examples"
        bars.append(
            f'<rect x="{i * width + 1}" y="{height - tall:.1f}" width="{width - 2}" '
            f'height="{tall:.1f}"><title>{predicted}</title></rect>'
        )
    full = _NUM_BINS * width
    about = (
        f"Histogram of {name}: {len(values):,} examples from {_number(least)} to {_number(most)}; "
        f"the largest of {_NUM_BINS} bins has {highest:,}."
    )
    return (
        f'<svg class="histogram" viewBox="0 0 {full} {height + 24}" role="img" '
        f'aria-label="{escape(about, quote=True)}">{"".join(bars)}'
        f'<line x1="0" y1="{height}" x2="{full}" y2="{height}"/>'
        f'<text x="0" y="{height + 18}">{_number(least)}</text>'
        f'<text x="{full / 2}" y="{height + 18}" text-anchor="middle">'
        f"{_number((least + most) / 2)}</text>"
        f'<text x="{full}" y="{height + 18}" text-anchor="end">{_number(most)}</text></svg>'
    )


def _number(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return "none" if math.isnan(value) else f"{value:,.4g}"
    return str(value)


def _percent(share: float) -> str:
    return "none" if math.isnan(share) else f"{100 * share:.1f} %"
