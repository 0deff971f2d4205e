"""What a person sees of a run on terminals of several widths."""

import io
import re

import pytest
from rich.console import Console

from elasticdl.engines.progress import Bar


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_bar_has_the_count_and_the_time_left_whole_on_any_terminal(monkeypatch, width):
    terminal = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(
        file=terminal, width=width, force_terminal=True, color_system=None,
    ))  # fmt: skip
    bar = Bar()

    bar.started("Training", 16_100_000, "records")
    bar.advanced(53_935, {"epoch": "1/100000", "step": "1,234", "loss": "0.1585"})
    bar.ended()

    last = [line for line in terminal.getvalue().splitlines() if "53,935" in line][-1]
    assert re.search(r"Training .*53,935/16,100,000 .*-:--:-- epoch 1/100000  step 1,234", last)
