"""Who holds a lock, and whether he lives."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from elasticdl.artifacts import lock
from elasticdl.artifacts.lock import hold, start_of


def test_a_process_is_known_by_its_start() -> None:
    assert start_of(os.getpid()) == start_of(os.getpid()) is not None
    assert start_of(os.getpid()) != start_of(1)


def test_a_dead_process_that_nobody_has_asked_for_is_dead() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as process:
        process.stdout.read()
        deadline = time.monotonic() + 10
        while start_of(process.pid) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)

        # Its number is taken until its parent asks.
        os.kill(process.pid, 0)


def test_a_lock_that_goes_while_it_is_taken_is_taken(local_folder, monkeypatch) -> None:
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
def test_processes_that_take_turns_are_told_of_nothing_but_each_other(
    local_folder, run_python
) -> None:
    code = f"""
import os
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.lock import hold
from elasticdl.errors import OutputBusyError
folder, held = OutputFolder({local_folder.uri!r}), 0
child = os.fork()
while held < 3000:
    try:
        hold(folder, ".lock").release()
        held += 1
    except OutputBusyError:
        pass
if child:
    assert os.waitpid(child, 0)[1] == 0
"""

    run_python(code)
