"""A list of jobs reads well in a terminal of any width, and never breaks a name."""

from __future__ import annotations

import pytest

from elasticdl.cli.job_table import JobRow, print_jobs

ROWS = [
    JobRow(
        "runs/a-rather-long-name-of-a-job",
        "running: waiting for the first of 4 workers, which starts and compiles its model",
        {"progress": "epoch 1/10, 41 %", "loss": "0.3127", "took": "2 h 5 min"},
    ),
    JobRow("runs/b", "finished: all 10 epochs", {"progress": "", "loss": "0.1", "took": "3 s"}),
]


@pytest.fixture
def printed(monkeypatch, capsys):
    def printed(width):
        monkeypatch.setenv("COLUMNS", str(width))
        print_jobs(ROWS)
        return capsys.readouterr().out.splitlines()

    return printed


def test_a_wide_terminal_has_a_line_for_each_job(printed):
    title, first, second = printed(200)

    assert title.split() == ["job", "progress", "loss", "took", "state"]
    assert first.startswith("runs/a-rather-long-name-of-a-job  epoch 1/10, 41 %  0.3127")
    assert second.index("finished") == first.index("running") == title.index("state")


def test_a_narrow_terminal_has_a_paragraph_for_each_job(printed):
    assert printed(60) == [
        "runs/a-rather-long-name-of-a-job",
        "  running: waiting for the first of 4 workers, which starts",
        "    and compiles its model",
        "  progress epoch 1/10, 41 %; loss 0.3127; took 2 h 5 min",
        "runs/b",
        "  finished: all 10 epochs",
        "  loss 0.1; took 3 s",
    ]


@pytest.mark.parametrize("width", [1, 20, 40, 80, 100, 150])
def test_no_line_is_wider_than_the_terminal_except_for_long_words(printed, width):
    longest = max(len(word) for row in ROWS for word in row.name.split())

    lines = printed(width)

    assert all(len(line) <= max(width, 20, longest) for line in lines)
    assert any(ROWS[0].name in line for line in lines)
