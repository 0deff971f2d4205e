"""A training and its errors in a real kernel."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


INTERRUPT = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


def test_a_notebook_shows_a_bar_and_no_log_lines_or_tracebacks(run_cells, zoo, data) -> None:
    train = (
        "import elasticdl\n"
        f"elasticdl.train(model_zoo='zoo', model_def='small', data={str(data)!r}, num_epochs=2"
    )
    (first, failed, stopped) = run_cells(
        f"{train}, output='m')",
        f"{train}, output='m2', minibatch_size=0)",
        f"open('zoo/ends.py', 'w').write({INTERRUPT!r})\n"
        + f"{train}, output='m3')".replace("small", "ends"),
    )

    bar, *lines, result = first
    assert "<progress" in bar.data["text/html"]
    assert bar.data["text/plain"].startswith("Training: ")
    assert {each.name for each in lines} == {"stdout"}
    text = "".join(each.text for each in lines)
    assert [line.split(":")[0] for line in text.splitlines()] == ["epoch 1/2", "epoch 2/2"]
    assert result.output_type == "execute_result"
    (error,) = failed
    assert error.traceback == [f"{error.ename}: {error.evalue}"]
    assert [each.traceback for each in stopped if each.output_type == "error"] == [
        ["KeyboardInterrupt: Nothing was saved yet; make the same call to start again."]
    ]
