"""Who holds a lock, and whether he lives."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from elasticdl.artifacts import lock
from elasticdl.artifacts.lock import hold, start_of


def test_a_process_is_identified_by_its_start_time() -> None:
    assert start_of(os.getpid()) == start_of(os.getpid()) is not None
    assert start_of(os.getpid()) != start_of(1)


def test_a_zombie_process_counts_as_dead() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as process:
        process.stdout.read()
        deadline = time.monotonic() + 10
        while start_of(process.pid) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)

        # Its number is taken until its parent asks.
        os.kill(process.pid, 0)


def test_a_lock_released_while_being_taken_is_taken(local_folder, monkeypatch) -> None:
    first = hold(local_folder, ".lock")
    flock = lock.fcntl.flock

    def released_meanwhile(descriptor: int, operation: int) -> None:
        first.release()
        flock(descriptor, operation)

    monkeypatch.setattr(lock.fcntl, "flock", released_meanwhile)

    second = hold(local_folder, ".lock")

    assert local_folder.exists(".lock")
    second.release()


@pytest.mark.timeout(60)
def test_a_lock_that_appears_and_vanishes_can_be_taken(local_folder, run_python) -> None:
    code = f"""
import contextlib, os, signal
from pathlib import Path
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.lock import hold
folder = OutputFolder({local_folder.uri!r})
hold(folder, ".lock").release()
path = Path(folder.where(".lock"))
child = os.fork()
while not child:
    path.touch()
    path.unlink(missing_ok=True)
try:
    for _ in range(3000):
        hold(folder, ".lock").release()
finally:
    os.kill(child, signal.SIGKILL)
"""

    run_python(code)
