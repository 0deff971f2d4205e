"""A session as a Ray job: the queue sees it as any other, whoever is killed; on a real cluster."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from elasticdl.errors import UnavailableError, UsageError
from elasticdl.sessions import ray_job, runner, submit
from elasticdl.sessions.queue import Queue
from elasticdl.sessions.state import SessionState
from elasticdl.sessions.submission import Submission

WAIT_S = 60
ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
PORTS = (
    *("port", "dashboard-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port"),
    *("ray-client-server-port", "metrics-export-port", "runtime-env-agent-port"),
)
# A session that notes each start, and ends when somebody writes its exit code or tells it to.
SESSION = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def end(*_):
    time.sleep(4)  # longer than Ray waits by itself
    print("told to end", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
with (folder / "starts").open("a") as file:
    file.write(f"{os.getpid()}\\n")
print("started", flush=True)
while not (folder / "go").exists():
    time.sleep(0.02)
print("error: as it was told", flush=True)
sys.exit(int((folder / "go").read_text()))
"""
ONE = Submission("one", "/repo", "ab" * 20, "", "", "baseline", "/data", submitted=1.0)


@pytest.fixture
def queue(tmp_path):
    """Return a queue with one submission, whose checkout is there."""
    queue = Queue(tmp_path / "home")
    (queue.folder("one") / "project").mkdir(parents=True)
    with queue.locked():
        queue.write(replace(ONE, as_ray_job=True))
    return queue


@pytest.fixture(scope="module")
def cluster():
    """Return the address of a Ray cluster of one machine that takes jobs."""
    # Of several clusters on a machine, one alone can have the ports that Ray would choose.
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in PORTS]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        ports = [probe.getsockname()[1] for probe in probes]
    # A short name: sockets lie in it.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray", ignore_cleanup_errors=True) as temp:
        head = subprocess.Popen(
            [
                Path(sys.executable).parent / "ray", "start", "--head", "--block",
                "--node-ip-address=127.0.0.1", "--num-cpus=2", "--include-dashboard=true",
                *(f"--{name}={port}" for name, port in zip(PORTS, ports, strict=True)),
                f"--temp-dir={temp}", "--object-store-memory=100000000",
            ],
            env={**os.environ, **ENVIRONMENT},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            said = ""
            while "Ray runtime started" not in said:
                line = head.stdout.readline()
                assert line, said
                said += line
            yield f"127.0.0.1:{ports[0]}"
        finally:
            head.terminate()
            with suppress(subprocess.TimeoutExpired):
                head.wait(30)
            head.kill()
            head.stdout.close()


@pytest.fixture
def at_work(queue, cluster, monkeypatch):
    """Let a runner work on the queue, with a session that does as it is told."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)

    def command(submission, folder):
        real = runner.session_command(replace(submission, ray_address=cluster), folder)
        before = real[: real.index("--") + 1]
        return [*before, sys.executable, "-c", SESSION, str(folder)]

    thread = threading.Thread(target=runner.work, args=(queue, 1, command), daemon=True)
    thread.start()
    yield
    with suppress(UnavailableError, UsageError):
        queue.cancel("one")
    thread.join(WAIT_S)


def until(is_so) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def starts(queue: Queue) -> list[int]:
    file = queue.folder("one") / "starts"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def jobs(queue: Queue) -> list[str]:
    """Return the jobs that the session's log names, one for each who stood for it."""
    said = queue.log(queue.read("one")).read_text().splitlines()
    return [line for line in said if line.startswith("Ray job ")]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_job_survives_kills_and_ends_like_its_session(queue, at_work) -> None:
    until(lambda: len(starts(queue)) == 1 and len(jobs(queue)) == 1)

    # Who stands for it: the next one waits for the same job.
    os.kill(queue.read("one").pid, signal.SIGKILL)
    until(lambda: len(jobs(queue)) == 2)

    # The session itself: it is started again, as another job.
    os.kill(starts(queue)[0], signal.SIGKILL)
    until(lambda: len(starts(queue)) == 2)

    (queue.folder("one") / "aside").write_text("5")
    (queue.folder("one") / "aside").rename(queue.folder("one") / "go")
    until(lambda: queue.read("one").has_ended)
    ended = queue.read("one")
    assert (ended.state, ended.exit_code, ended.error) == (SessionState.FAILED, 5, "as it was told")
    first, again, other = jobs(queue)
    assert first == again != other
    assert len(starts(queue)) == 2


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_cancelled_job_has_time_to_end(queue, at_work) -> None:
    until(lambda: len(starts(queue)) == 1)
    with pytest.raises(UsageError, match="Leave out --now"):
        queue.cancel("one", at_once=True)

    queue.cancel("one")

    until(lambda: queue.read("one").has_ended)
    assert queue.read("one").state is SessionState.KILLED
    assert "told to end" in queue.log(queue.read("one")).read_text()


def test_a_missing_cluster_is_reported_soon(queue, capsys) -> None:
    given = ["--address=http://127.0.0.1:9", f"--folder={queue.folder('one')}", "--", "true"]

    assert ray_job.main(given) == UnavailableError.exit_code
    assert "error: --ray_address=http://127.0.0.1:9: no Ray cluster" in capsys.readouterr().out


def test_a_machine_without_the_home_folder_is_reported(tmp_path) -> None:
    command = ray_job.entrypoint(tmp_path / "no where", ["python", "-c", "1"])
    done = subprocess.run(["bash", "-c", command], check=False, capture_output=True, text=True)

    assert done.returncode == 6
    assert f"error: {tmp_path}/no where/project: the machine of the cluster" in done.stdout


def test_a_machine_with_another_interpreter_uses_its_own(queue) -> None:
    folder = queue.folder("one")
    command = ray_job.entrypoint(folder, ["/no/python", "-c", "print(6 * 7)"])
    subprocess.run(["bash", "-c", command], check=True)

    assert (folder / "session.log").read_text() == "42\n"


def test_a_ray_job_needs_a_cluster(tmp_path) -> None:
    request = submit.SubmitRequest("baseline", as_ray_job=True)

    with pytest.raises(UsageError, match="Add --ray_address"):
        submit.submit(request, submit.SubmitOrigin(None, ""), Queue(tmp_path))


def test_workers_of_a_ray_job_run_on_its_cluster(tmp_path) -> None:
    one = replace(ONE, python="/bin/python", ray_address="host:6379", num_workers="2")
    as_job = replace(one, as_ray_job=True)

    assert "--ray_address=host:6379" in runner.session_command(one, tmp_path)
    command = runner.session_command(as_job, tmp_path)
    assert command[3:6] == [
        "elasticdl.sessions.ray_job",
        "--address=host:6379",
        f"--folder={tmp_path}",
    ]
    assert command[6:11] == ["--", "/bin/python", "-P", "-m", "elasticdl.cli.main"]
    assert "--ray_address=auto" in command
    # How it runs is how it is trained: the same session may be submitted either way.
    assert as_job.how != one.how
