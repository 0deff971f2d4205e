"""The tutorial is true: its statements run in its order, and their output is what it shows.

A block marked `sql` is run; a block marked `text` right behind it is what that prints. Numbers that
a training comes to differ a little between processors, so they are compared roughly. A line `...`
stands for any lines.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("duckdb")

from elasticdl.errors import ElasticDLError
from elasticdl.sql.execute import SqlSession, execute
from elasticdl.sql.results import show

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "sql.md"
EXAMPLE = re.compile(r"^```sql\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
BOX = re.compile(r"[─│╭╮╰╯├┤┬┴┼█▉▊▋▌▍▎▏\s]+")


def examples(page: str) -> list[tuple[str, str | None]]:
    """Return the statements of each block and what they print, None where nothing is shown."""
    return [(statements, shown or None) for statements, shown in EXAMPLE.findall(page)]


def run_here(path: Path, environment: dict[str, str]) -> int:
    """Run a submitter in this process, which has loaded the frameworks."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        runpy.run_path(str(path), run_name="__main__")
    return 0


def output_of(statements: str) -> str:
    """Return what `elasticdl sql` prints for statements; progress is left out."""
    session = SqlSession("duckdb:///shop.db", "models", run_submitter=run_here)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            for result in execute(statements, session):
                show(result, "table")
        except ElasticDLError as error:
            print(f"error: {error}")
    return output.getvalue()


def parts_of(text: str) -> list[str]:
    """Return the words and numbers of an output, without what its width decides."""
    return [part for part in BOX.sub(" ", text).split(" ") if part]


def is_alike(found: str, shown: str) -> bool:
    """Return whether a part is the one that is shown; numbers may differ by a third."""
    if found == shown:
        return True
    if not (NUMBER.fullmatch(found) and NUMBER.fullmatch(shown)):
        return False
    one, other = (float(text.replace(",", "")) for text in (found, shown))
    is_whole = "." not in shown
    return not is_whole and math.isclose(one, other, rel_tol=1 / 3, abs_tol=0.1)


def matches(found: str, shown: str) -> bool:
    """Return whether an output is the one that is shown."""
    at, parts = 0, parts_of(found)
    for number, piece in enumerate(re.split(r"^\.\.\.\n", shown, flags=re.MULTILINE)):
        wanted = parts_of(piece)
        starts = range(at, len(parts) - len(wanted) + 1) if number else [at]
        for start in starts:
            if all(map(is_alike, parts[start : start + len(wanted)], wanted)):
                at = start + len(wanted)
                break
        else:
            return False
    return at == len(parts) or shown.endswith("...\n")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_statements_of_the_tutorial_print_the_shown_output(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(os.environ, "COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    blocks = examples(PAGE.read_text(encoding="utf-8"))

    assert len(blocks) > 10
    for statements, shown in blocks:
        found = output_of(statements)

        assert found.startswith("error:") == (shown or "").startswith("error:"), found
        assert shown is None or matches(found, shown), f"{statements}\n{found}"
