"""Who holds a lock, and whether he lives."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from elasticdl.artifacts.lock import start_of


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
