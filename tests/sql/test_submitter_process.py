"""The process of a statement, and the one that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from elasticdl.sql.database_interface import open_database
from elasticdl.sql.models import Models

_HOLDER = (
    "import sys, time, duckdb\nc = duckdb.connect(sys.argv[1])\nprint('open', flush=True)\n"
    "time.sleep(float(sys.argv[2]))\n"
)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_shell_ends_its_submitter(sent, tmp_path) -> None:
    submitter = tmp_path / "submitter.py"
    submitter.write_text(
        "import pathlib, time\n"
        "try:\n"
        f"    pathlib.Path({str(tmp_path / 'begun')!r}).touch()\n"
        "    time.sleep(60)\n"
        "finally:\n"
        f"    pathlib.Path({str(tmp_path / 'saved')!r}).touch()\n"
    )
    program = (
        "import os, pathlib, signal, sys\n"
        "from elasticdl.sql.execute import SqlSession\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        f"SqlSession().run_submitter(pathlib.Path({str(submitter)!r}), dict(os.environ))\n"
    )
    shell = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    until(tmp_path / "begun")

    shell.send_signal(sent)

    shell.wait(20)
    until(tmp_path / "saved")


def until(file) -> None:
    deadline_s = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < deadline_s, f"There is no {file}."
        time.sleep(0.05)


def test_a_statement_waits_for_the_end_of_its_predecessor(tmp_path) -> None:
    models = Models(str(tmp_path / "models"))
    held, ended = threading.Event(), threading.Event()

    def predecessor() -> None:
        with models.training("m", "s", "db"):
            held.set()
            ended.wait(0.5)

    thread = threading.Thread(target=predecessor)
    thread.start()
    held.wait()
    with models.training("m", "s", "db") as version:
        assert version.is_resumed
    thread.join()


def test_a_statement_waits_for_a_duckdb_file_in_use(tmp_path) -> None:
    path = tmp_path / "t.db"
    command = [sys.executable, "-c", _HOLDER, str(path), "0.7"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        open_database(f"duckdb:///{path}").close()
