"""What a person sees of a run on terminals of several widths."""

import io
import itertools
import re

import pytest
from rich.console import Console

from elasticdl.cli.options import print_metrics
from elasticdl.engines.progress_bar import Bar, Lines, Phase, epoch_in_words, metrics_in_words


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_bar_shows_count_and_time_left_on_any_terminal(monkeypatch, width):
    terminal = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(
        file=terminal, width=width, force_terminal=True, color_system=None,
    ))  # fmt: skip
    bar = Bar()

    bar.started("Training", 16_100_000, "records")
    bar.advanced(53_935, {"epoch": "1/100000", "step": "1,234", "loss": "0.1585"})
    bar.ended()

    last = [line for line in terminal.getvalue().splitlines() if "53,935" in line][-1]
    assert re.search(r"Training .*0/16,100,000 +-:--:-- left", terminal.getvalue())
    # The job ended early, so no time is left.
    assert re.search(r"Training .*53,935/16,100,000 +epoch 1/100000", last)
    assert "…" not in last


def phase(*reports, total=1000, epochs=None):
    """Return a phase with reports of (seconds, done), in the epochs given for each."""
    seconds = iter(second for second, _ in reports)
    made = Phase("Training", total, "records", clock=lambda: next(seconds))
    for (_, done), epoch in zip(reports, epochs or ["1/3"] * len(reports), strict=True):
        made.advance(done, {"epoch": epoch, "step": "7", "loss": "0.25"})
    return made


def test_the_time_before_the_first_report_does_not_count() -> None:
    assert phase((60, 10)).left_s is None
    assert phase((60, 10), (61, 110)).speed == 100


def test_a_pause_after_which_steps_are_repeated_does_not_count() -> None:
    assert phase((0, 10), (10, 1010), (500, 900), (510, 1900)).speed == 100


def test_the_first_epoch_does_not_count_after_the_second() -> None:
    epochs = ["1/3", "1/3", "2/3", "2/3"]

    assert phase((1, 1), (60, 300), (61, 310), (71, 510), epochs=epochs).speed == 20


def test_the_speed_covers_the_last_minutes() -> None:
    slow_then_fast = [(minute * 60, minute * 10) for minute in range(60)]
    slow_then_fast += [(3600 + second, 600 + second) for second in range(0, 600, 10)]

    assert phase(*slow_then_fast).speed == pytest.approx(1, rel=0.01)


def test_a_narrow_terminal_keeps_the_epoch_and_the_loss() -> None:
    facts = phase((1, 10), (2, 110))

    assert facts.facts_in(60) == "epoch 1/3  step 7  loss 0.25  100 records/s"
    assert facts.facts_in(35) == "epoch 1/3  loss 0.25  100 records/s"
    assert facts.facts_in(30) == "epoch 1/3  loss 0.25"
    assert facts.facts_in(10) == "epoch 1/3"
    assert facts.facts_in(0) == ""


def test_a_phase_that_ended_early_has_no_time_left() -> None:
    ended = phase((1, 10), (2, 110))

    assert ended.line().endswith("100 records/s  9 s left")
    assert ended.line(has_ended=True).endswith("100 records/s")


def test_the_last_line_of_a_phase_has_no_time_left(monkeypatch) -> None:
    now_s = itertools.count(0.0, 5.0)
    monkeypatch.setattr("elasticdl.engines.progress_bar.time.monotonic", lambda: next(now_s))
    stream = io.StringIO()
    lines = Lines(stream)

    lines.started("Training", 1000, "records")
    for done in (10, 20, 30, 40):
        lines.advanced(done, {})
    lines.ended()

    assert "left" not in stream.getvalue().splitlines()[-1]


def test_a_count_without_a_total_has_its_unit(monkeypatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(
        file=terminal, width=80, force_terminal=True, color_system=None,
    ))  # fmt: skip
    lines, bar = Lines(terminal), Bar()

    for reporter in (lines, bar):
        reporter.started("Storing data", 0, "rows")
        reporter.advanced(976, {})
        reporter.ended()

    assert terminal.getvalue().startswith("Storing data: 976 rows\n")
    assert re.search(r"Storing data .* 976 rows ", terminal.getvalue().partition("\n")[2])


def test_the_time_left_has_a_fixed_width() -> None:
    assert phase((0, 0)).clock() == "-:--:-- left"
    assert phase((0, 0), (10, 1), total=1000).clock() == "2:46:30 left"
    assert phase((0, 0), (10, 1000), total=1000).clock() == "0:00:00 left"


def test_an_epoch_is_one_line_with_current_metrics() -> None:
    metrics = {"loss": 0.5, "val_loss": 0.75}

    assert epoch_in_words(0, 3, metrics, is_evaluated=True) == "epoch 1/3: loss 0.5, val_loss 0.75"
    assert epoch_in_words(1, 3, metrics, is_evaluated=False) == "epoch 2/3: loss 0.5"


def test_a_metric_of_a_few_values_is_shown_with_rounded_values() -> None:
    metrics = {"f1": [1 / 3, 0.5], "confusion": [[1.0, 0.0], [0.0, 1.0]], "many": [0.5] * 99}

    assert metrics_in_words({"loss": 0.25, **metrics}) == "loss 0.25, f1 [0.3333, 0.5]"


def test_the_result_has_all_values_of_a_metric_rounded(capsys) -> None:
    print_metrics({"num_records": 12_345_678, "loss": 1 / 3, "table": [[2 / 3], [1.0]]})

    assert [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()] == [
        ["num_records", "12345678"],
        ["loss", "0.333333"],
        ["table", "[[0.666667], [1]]"],
    ]
