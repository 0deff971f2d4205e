"""A stopped process of Ray's is killed after a bound, by whom nothing can keep waiting."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from elasticdl.engines.elastic import fork_server
from elasticdl.engines.elastic.ray_watch import RayWatch, kill_fork_servers

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def raylet():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]) as process:
        yield process
        process.kill()


def wait_for(condition):
    for _ in range(200):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("it did not come to pass")


def test_a_process_that_stays_stopped_is_killed_with_the_reason(raylet):
    with RayWatch({"raylet": [raylet]}, stopped_after_s=1.0) as watch:
        raylet.send_signal(signal.SIGSTOP)
        wait_for(lambda: watch.why_lost() is not None)

    assert raylet.returncode == -signal.SIGKILL
    assert watch.why_lost().startswith("Ray's process raylet on this machine was stopped for ")


def test_a_briefly_stopped_process_survives(raylet):
    with RayWatch({"raylet": [raylet]}, stopped_after_s=3.0) as watch:
        raylet.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        raylet.send_signal(signal.SIGCONT)
        time.sleep(2.5)

        assert watch.why_lost() is None


def test_a_dead_process_is_named(raylet):
    with RayWatch({"raylet": [raylet]}) as watch:
        assert watch.why_lost() is None
        raylet.kill()
        wait_for(lambda: watch.why_lost() == "Ray's process raylet on this machine died.")


def test_a_process_stopped_at_the_end_is_not_awaited(raylet):
    with RayWatch({"raylet": [raylet]}) as watch:
        raylet.send_signal(signal.SIGSTOP)
        wait_for(lambda: psutil.Process(raylet.pid).status() == psutil.STATUS_STOPPED)
        watch.kill_stopped()
        wait_for(lambda: raylet.poll() is not None)


def test_only_a_stopped_fork_server_of_the_run_is_killed(tmp_path):
    def server_of(name):
        fork_server.connect(tmp_path / name / "server", [], linger_s=60).close()
        return [
            each
            for each in psutil.process_iter(["cmdline"])
            if str(tmp_path / name / "server") in (each.info["cmdline"] or [])
        ]

    ours, others = server_of("run"), server_of("run2")
    for process in ours:
        process.send_signal(signal.SIGSTOP)

    kill_fork_servers(tmp_path / "run")

    assert ours
    gone, alive = psutil.wait_procs([*ours, *others], timeout=3)
    assert set(gone) == set(ours)
    for process in alive:
        os.kill(process.pid, signal.SIGKILL)
