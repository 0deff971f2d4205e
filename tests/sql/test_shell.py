"""The shell as its user meets it: on a terminal, in a pipe, and what completes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

pytest.importorskip("prompt_toolkit")

from elasticdl.sql.completion import CompletionNames, words_for
from elasticdl.sql.execute import Connection, SqlSession
from elasticdl.sql.models import Models
from elasticdl.sql.shell import is_complete

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


class Terminal:
    """A terminal of 100 columns, and `elasticdl sql` on it."""

    def __init__(self, *arguments: str, folder) -> None:
        self.process, self._fd = pty.fork()
        if self.process == 0:
            # As a parent that runs in the background leaves it.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            environment = {
                **os.environ,
                "TERM": "xterm",
                "XDG_DATA_HOME": str(folder),
                "PYTHONPATH": os.pathsep.join(sys.path),
            }
            command = [sys.executable, "-m", "elasticdl.cli.main", "sql", *arguments]
            os.execve(sys.executable, command, environment)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, wanted: str, timeout_s: float = 60.0, pressing: str = "") -> str:
        """Return what is printed up to a text, pressing a key every second."""
        begun_s = pressed_s = time.monotonic()
        printed, deadline_s = "", begun_s + timeout_s
        while wanted not in printed:
            if pressing and time.monotonic() - pressed_s > 1:
                self.type(pressing)
                pressed_s = time.monotonic()
            assert time.monotonic() < deadline_s, f"{wanted!r} is not in {printed!r}"
            if select.select([self._fd], [], [], 0.2)[0]:
                part = os.read(self._fd, 1 << 16).decode("utf-8", "replace")
                if "\x1b[6n" in part:  # it asks where the cursor is
                    self.type("\x1b[1;1R")
                printed += _ESCAPES.sub("", part)
        return printed

    def end(self) -> int:
        _, status = os.waitpid(self.process, 0)
        os.close(self._fd)
        return os.waitstatus_to_exitcode(status)


@pytest.fixture
def terminal(shop, tmp_path) -> Terminal:
    return Terminal(
        f"--database={shop}", f"--models={tmp_path / 'models'}", folder=tmp_path / "data"
    )


def run(shop, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "elasticdl.cli.main", "sql", f"--database={shop}", *arguments]
    return subprocess.run(
        command,
        check=False,
        input=given,
        capture_output=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.slow
def test_statements_run_on_a_terminal(terminal, tmp_path) -> None:
    terminal.until("elasticdl>")
    terminal.type("\\d\r")
    assert "│ employee │" in terminal.until("2 rows")
    terminal.type("\\d employee\r")
    assert "VARCHAR" in terminal.until("3 rows")
    terminal.type("\\d emploee\r")
    terminal.until("There is no table 'emploee'; did you mean 'employee'?")
    terminal.type("SELECT 'a;b' AS x,\r")
    terminal.until("...")
    terminal.type("NULL AS y;\r")
    assert "│ a;b │ NULL │" in terminal.until("1 row")
    # What is typed half is dropped, and an error ends nothing.
    terminal.type("SELECT nonsense\x03")
    terminal.type("SELECT * FROM employee\rTO TRAIN regressor.DMM INTO m;\r")
    error = terminal.until("^^^^^^^^^^^^^")
    assert "line 2, column 10" in error.replace("\r\n", "")
    # What is typed before the prompt is there would be cancelled in it, not while it runs.
    terminal.until("elasticdl>")
    # A query of hours.
    terminal.type("SELECT sum(a.range*b.range) FROM range(10000000) a, range(10000000) b;\r")
    terminal.until("Cancelled.", pressing="\x03")
    terminal.type("SELECT 7 AS seven;\r")
    terminal.until("│     7 │")
    train = "TO TRAIN regressor.DNN WITH hidden_units=[4], train.num_epochs=100000 INTO m;\r"
    terminal.type(f"SELECT name, role, salary FROM employee {train}")
    terminal.until("epoch 1")
    terminal.type("\x03")
    terminal.until("run the same statement to resume.")
    terminal.type(f"SELECT name, role, salary FROM employee {train}")
    terminal.until("Resuming version 1 of m")
    # The rate at the end of the line may be cut off.
    terminal.until("  loss ")
    terminal.type("\x03")
    terminal.until("run the same statement to resume.")
    terminal.until("elasticdl>")
    terminal.type("\\q\r")

    assert terminal.end() == 0
    history = tmp_path / "data" / "elasticdl" / "sql_history"
    assert "regressor.DMM" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_statements_and_rows_can_be_piped(shop) -> None:
    done = run(shop, "--format=csv", given=b"SELECT role, count(*) AS n FROM employee\n"
               b"GROUP BY role ORDER BY role; SELECT 'last'")  # fmt: skip

    assert done.returncode == 0
    assert done.stdout.decode() == "role,n\nboss,67\nchef,66\nclerk,67\n'last'\nlast\n"


def test_the_first_error_ends_a_file_with_its_exit_code(shop, tmp_path) -> None:
    (tmp_path / "report.sql").write_text("SELECT 1 AS a;\nSELECT b FROM nowhere;\nSELECT 2 AS c;")

    done = run(shop, "-f", str(tmp_path / "report.sql"), "--format=json")
    assert done.returncode == 2
    assert done.stdout == b'[\n  {"a": 1}\n]\n'
    assert b"nowhere" in done.stderr


def test_bytes_that_are_not_text_are_refused_with_their_line(shop) -> None:
    done = run(shop, given=b"SELECT 1;\nSELECT '\xff'")

    assert done.returncode == 2
    assert b"standard input, line 2: byte 18 is not UTF-8" in done.stderr
    assert done.stdout == b""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("\\d", True),
        ("exit", True),
        ("SELECT 1", False),
        ("SELECT ';", False),
        ("SELECT ';';", True),
        ("SELECT 1; -- more", True),
        ("SELECT 1 -- ;", False),
        ("/* ; ", False),
    ],
)
def test_enter_runs_a_complete_statement(text: str, expected: bool) -> None:
    assert is_complete(text) == expected


def test_completion_offers_valid_words(shop, tmp_path) -> None:
    names = CompletionNames(Connection(SqlSession(shop)), Models(str(tmp_path)), None)

    def words(before: str, after: str = "") -> list[str]:
        return words_for(before, before + after, names)

    assert words("SELECT * FROM e") == ["employee"]
    assert words("SELECT sal", " FROM employee") == ["salary"]
    assert words("SELECT * FROM t TO TRAIN reg") == ["regressor.DNN"]
    assert words("SELECT * FROM t TO PREDICT test") == ["testdata"]
    assert words("SHOW TRAIN ") == []
    assert words("SELECT * FROM t to tr") == ["TRAIN"]
    assert words("SELECT * FROM employee LIM") == ["LIMIT"]
    assert words("\\m") == ["\\models"]
    assert words("\\d test") == ["testdata"]
