"""How a session's model does on each example of its validation and test data.

    reports/validation.parquet  .html   validation_report.csv  validation_report_summary.csv
    reports/test.parquet        .html   eval_report.csv        eval_report_summary.csv

The user's generators are gone through once, preprocessed and batched by the user's code; its
batches are taken apart, and those of the model are made here. Rows and ids are the
user's: what is computed of a row is not known here (`evaluation/`).
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.artifacts.folder import OutputFolder
from elasticdl.data.batch import leaves, map_arrays, stack
from elasticdl.dialects.params import described
from elasticdl.engines.randomness import Stream
from elasticdl.errors import DataError, DefinitionError
from elasticdl.evaluation.functions import EvalFunctions
from elasticdl.evaluation.report import ReportResult, ReportWriter
from elasticdl.evaluation.report_page import write_page
from elasticdl.evaluation.report_tables import Report
from elasticdl.evaluation.report_views import write_views

if TYPE_CHECKING:
    from elasticdl.data.batch import Arrays
    from elasticdl.dialects.abstractions import Split
    from elasticdl.engines.engine import Reporter
    from elasticdl.sessions.project import Session
    from elasticdl.sessions.trained import TrainedSession

REPORTS = "reports"
_MANIFEST = "reports.json"
# Split -> what the documents of sessions call its table.
_TABLES = {"validation": "validation_report", "test": "eval_report"}
_BATCH = 256
_SEED = 4
_PARTS = 3
_NUM_PICTURES = 24
_PICTURES_S = 30.0


@dataclass(frozen=True, eq=False)
class _Examples:
    """Some examples of a split, as the model takes them.

    Attributes:
        ids: What they are called.
        features: What the model takes.
        labels: What the functions take.
        weights: One an example; None where there are none.
    """

    ids: Sequence[Any]
    features: Arrays
    labels: Arrays
    weights: Any


def reported(session: Session) -> dict[str, Any] | None:
    """Return what the reports of a session say of themselves; None if there are none."""
    file = session.folder / REPORTS / _MANIFEST
    if not file.is_file():
        return None
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def report(trained: TrainedSession, reporter: Reporter) -> dict[str, Any]:
    """Evaluate each example of the validation and test data.

    Args:
        trained: The model, with the components it was trained with.
        reporter: Who tells people.

    Returns:
        What the reports say of themselves: the mean of each function on each split.

    Raises:
        DataError: A split has fewer examples than it was said to have, or its ids do not fit.
        UserCodeError: A component or a function raised.
        OutputError: A report cannot be written.
    """
    folder = OutputFolder(trained.session.folder / REPORTS)
    splits = {}
    for name in _TABLES:
        result = _report_split(trained, name, folder, reporter)
        splits[name] = {
            "num_examples": result.num_rows,
            "means": dict(result.means),
            "reading": result.reading,
            "notes": list(result.notes),
        }
        for note in result.notes:
            reporter.note(f"{name}: {note}")
    manifest = {"params_sha256": trained.model.description.params_sha256, "splits": splits}
    folder.write_bytes(_MANIFEST, json.dumps(manifest, indent=2).encode())
    return manifest


def _report_split(
    trained: TrainedSession, name: str, folder: OutputFolder, reporter: Reporter
) -> ReportResult:
    components, session = trained.components, trained.session
    functions = EvalFunctions(components.eval_functions())
    split = components.split(session.data, name)
    ids = components.validation_ids(session.data) if name == "validation" else None
    if ids is not None and len(ids) != split.num_examples:
        raise DataError(
            f"get_validation_index() has {len(ids)} ids; {split.name} says it has "
            f"{split.num_examples} examples. They must be as many, in the same order."
        )
    reporter.started(f"Evaluating {name} data", split.num_examples, "examples")
    done = 0
    try:
        with ReportWriter(folder, name=name, split=name, functions=functions) as writer:
            for some in _batches(split, name, ids, reporter):
                writer.add(
                    ids=some.ids,
                    labels=some.labels,
                    outputs=trained.trainer.predict(some.features),
                    weights=some.weights,
                )
                done += len(some.ids)
                reporter.advanced(done, {})
    finally:
        reporter.ended()
    for note in split.notes:
        reporter.note(f"{name}: {note}")
    table = Report(writer.result.path)
    views = write_views(table, folder, name=_TABLES[name])
    for note in views.notes:
        reporter.note(note)
    write_page(
        table,
        folder,
        name=name,
        title=f"{session.name}: {name} data",
        picture_of=_pictures(table, split),
        num_worst=_NUM_PICTURES,
    )
    return writer.result


def _batches(
    split: Split, name: str, ids: Sequence[Any] | None, reporter: Reporter
) -> Iterator[_Examples]:
    """Yield a split's examples, batched.

    Raises:
        DataError: There are fewer than were said to be.
    """
    examples = Stream(_SEED).drawn(lambda: _examples(split, name))
    number = 0
    for some in _of_one_shape(itertools.islice(examples, split.num_examples)):
        first, number = number, number + len(some)
        thirds = [third for _, _, third in some]
        if name == "test":
            called: Sequence[Any] = [_id_of(third, split) for third in thirds]
        else:
            called = range(first, number) if ids is None else ids[first:number]
        yield _Examples(
            ids=called,
            features=_stacked([x for x, _, _ in some], split),
            labels=_stacked([y for _, y, _ in some], split),
            weights=None if name == "test" else _weights(thirds),
        )
    if number < split.num_examples:
        raise DataError(
            f"{split.name} ended after {number} examples; it was said to have "
            f"{split.num_examples}. Correct the number it returns."
        )
    # Those of validation data may be endless: a training goes through them again and again.
    if name == "test" and next(examples, None) is not None:
        reporter.note(
            f"{split.name} yields more than the {split.num_examples} examples it says it has; "
            "those were evaluated, and the rest was left."
        )


def _examples(split: Split, name: str) -> Iterator[tuple[Any, Any, Any]]:
    """Yield a split's examples one by one, each of three parts."""
    for example in split.preprocessed():
        # As in training, examples without a weight count once each.
        has_none = name == "validation" and len(example) == _PARTS - 1
        parts = (*example, None) if has_none else example
        if len(parts) != _PARTS:
            raise DefinitionError(
                f"{split.name} yields {described(example)} after preprocessing; expected tuples of "
                "three: x, y, and the id."
            )
        yield parts


def _of_one_shape(examples: Iterator[Any]) -> Iterator[list[Any]]:
    """Yield examples in lists whose members can be stacked: users may pad each batch by itself."""
    shapes = None
    some: list[Any] = []
    for example in examples:
        found = [np.shape(array) for array in leaves(example[:2])]
        if some and (len(some) == _BATCH or found != shapes):
            yield some
            some = []
        shapes = found
        some.append(example)
    if some:
        yield some


def _stacked(examples: Sequence[Any], split: Split) -> Any:
    try:
        arrays = [map_arrays(np.asarray, example) for example in examples]
        # One alone would be a view with the axis in front, which is the same.
        return stack(arrays)
    except ValueError as error:
        raise DataError(
            f"{split.name}: examples cannot be put into one batch after preprocessing ({error}). "
            "Give all of them one shape, or override add_preprocess() to make batches of your own."
        ) from error


def _id_of(third: Any, split: Split) -> Any:
    found = (
        third.item() if isinstance(third, (np.ndarray, np.generic)) and third.ndim == 0 else third
    )
    if isinstance(found, (str, bytes, int, float)):
        return found
    raise DefinitionError(
        f"{split.name}: the third part of an example is {described(found)}; expected its id, a "
        "text or a number."
    )


def _weights(thirds: Sequence[Any]) -> Any:
    if any(third is None for third in thirds):
        return None
    weights = np.asarray(thirds, dtype=np.float64)
    return weights if weights.ndim == 1 else None


def _pictures(table: Report, split: Split) -> Callable[[int, str], Any]:
    """Return what finds an example's raw input, of those that do worst by any function.

    They are found by going through the data once more, up to the last of them, and not for long.
    """
    found: dict[int, Any] = {}
    asked = False

    def collect() -> Mapping[int, Any]:
        wanted = {row for metric in table.metrics for row in table.worst(metric, _NUM_PICTURES)}
        end = time.monotonic() + _PICTURES_S
        examples = Stream(_SEED).drawn(split.raw)
        for row, element in zip(range(max(wanted, default=-1) + 1), examples, strict=False):
            if row in wanted:
                found[row] = element[0]
            if time.monotonic() > end:
                break
        return found

    def picture_of(row: int, data_id: str) -> Any:
        nonlocal asked
        del data_id
        if not asked:
            asked = True
            collect()
        raw = found.get(row)
        return raw if isinstance(raw, np.ndarray) else None

    return picture_of
