"""Where there is no `flock`, one process at a time: on a real S3 server, and on a disk without."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Self

import pytest

from elasticdl.artifacts import output_lease, versioned_file
from elasticdl.artifacts.checkpoint_store import CheckpointStore
from elasticdl.artifacts.claim import LOCK_FILE
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.lock import hold, is_held
from elasticdl.errors import OutputBusyError, OutputLostError

LEASE_S = 2.0


@pytest.fixture
def on_s3(s3) -> OutputFolder:
    """Return a folder on S3 that does not exist yet."""
    return OutputFolder(f"s3://honest/{uuid.uuid4().hex}")


class Starter:
    """`starter.py`, and what it answers."""

    def __init__(self, uri: str, host: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("starter.py"), uri, host, str(LEASE_S)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def __enter__(self) -> Self:
        assert self.heard() == "ready"
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.communicate()

    def say(self, command: str) -> None:
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def heard(self) -> str:
        return self.process.stdout.readline().strip()

    def ask(self, command: str) -> str:
        self.say(command)
        return self.heard()


# --- Who gets it ------------------------------------------------------------------------------


@pytest.mark.parametrize("bucket", ["honest", "lossy"])
def test_exactly_one_of_many_machines_gets_the_lease(s3, bucket) -> None:
    uri = f"s3://{bucket}/{uuid.uuid4().hex}"
    with contextlib.ExitStack() as stack:
        starters = [stack.enter_context(Starter(uri, f"host-{i}")) for i in range(4)]
        for starter in starters:
            starter.say("claim")
        answers = sorted(starter.heard().split()[0] for starter in starters)

        assert answers == ["busy", "busy", "busy", "held"]


def test_exactly_one_of_many_threads_gets_the_lease(on_s3) -> None:
    start, held = threading.Barrier(8), []

    def take() -> None:
        start.wait()
        with contextlib.suppress(OutputBusyError):
            held.append(hold(on_s3, LOCK_FILE))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(held) == 1
    held[0].release()


def test_a_remote_holder_is_succeeded_after_its_lease_expires(on_s3) -> None:
    with Starter(on_s3.uri, "north") as first, Starter(on_s3.uri, "south") as second:
        assert first.ask("claim") == "held 1"
        first.process.kill()
        begin = time.monotonic()

        assert second.ask("claim") == "held 2"
        assert time.monotonic() - begin > LEASE_S * 0.9


def test_a_live_remote_holder_keeps_the_output_busy(on_s3) -> None:
    with Starter(on_s3.uri, "north") as first, Starter(on_s3.uri, "south") as second:
        first.ask("claim")
        for _ in range(3):
            answer = second.ask("claim")
            assert answer.startswith("busy")
            assert f"process {first.process.pid} on north" in answer

        assert first.ask("save 1") == "saved"


def test_a_released_output_is_free_immediately(on_s3) -> None:
    with Starter(on_s3.uri, "north") as first, Starter(on_s3.uri, "south") as second:
        first.ask("claim")
        first.ask("release")
        assert not is_held(on_s3, LOCK_FILE)
        begin = time.monotonic()

        assert second.ask("claim") == "held 2"
        assert time.monotonic() - begin < LEASE_S


def test_a_holder_in_another_pid_namespace_is_not_considered_dead(on_s3, monkeypatch) -> None:
    # Two containers of one host may share its name, and number processes from 1 each.
    held = hold(on_s3, LOCK_FILE)
    monkeypatch.setattr("elasticdl.artifacts.holder._machine", lambda: "another PID namespace")
    monkeypatch.setattr("elasticdl.artifacts.holder.start_of", lambda pid: None)
    monkeypatch.setattr(output_lease, "LEASE_S", LEASE_S)

    assert is_held(on_s3, LOCK_FILE)
    held.release()


# --- Who has lost it --------------------------------------------------------------------------


def test_a_suspended_holder_stops_before_changing_its_successors_files(on_s3) -> None:
    with Starter(on_s3.uri, "north") as first, Starter(on_s3.uri, "south") as second:
        first.ask("claim")
        assert first.ask("save 1") == "saved"
        first.process.send_signal(signal.SIGSTOP)
        assert second.ask("claim") == "held 2"
        assert second.ask("save 3") == "saved"
        before = (
            on_s3.list("checkpoints"),
            on_s3.read_bytes("checkpoints/step-0000000003/manifest.json"),
        )
        first.process.send_signal(signal.SIGCONT)

        answer = first.ask("save 2")

        assert answer.startswith("lost"), answer
        assert f"process {second.process.pid} on south" in answer
        after = (
            on_s3.list("checkpoints"),
            on_s3.read_bytes("checkpoints/step-0000000003/manifest.json"),
        )
        assert after == before
        assert second.ask("save 4") == "saved"
        latest = CheckpointStore(on_s3).latest()
        assert (latest.checkpoint.step, latest.damaged) == (4, ())
        assert latest.checkpoint.metadata == {"host": "south"}


class Overtaken:
    """A lock that is lost in the moment after it was checked."""

    checks_conditions = True

    def __init__(self, others: OutputFolder, name: str) -> None:
        self._others, self._name = others, name
        self._checks = 0

    def check(self) -> None:
        self._checks += 1
        if self._checks > 1:
            raise OutputLostError("lost")
        self._others.write_bytes(self._name, b"theirs")

    def release(self) -> None:
        pass


def test_a_file_written_between_check_and_write_is_kept(on_s3) -> None:
    on_s3.fence(Overtaken(OutputFolder(on_s3.uri), "best.json"))

    with pytest.raises(OutputLostError):
        on_s3.write_bytes("best.json", b"ours")

    assert on_s3.read_bytes("best.json") == b"theirs"


def test_a_manifest_replaced_between_check_and_write_is_kept(on_s3) -> None:
    name = "checkpoints/step-0000000007/manifest.json"
    on_s3.fence(Overtaken(OutputFolder(on_s3.uri), name))

    with pytest.raises(OutputLostError), on_s3.staging("checkpoints/step-0000000007") as path:
        (path / "manifest.json").write_bytes(b"ours")

    assert on_s3.read_bytes(name) == b"theirs"


def test_a_manually_deleted_lock_is_lost(on_s3, monkeypatch) -> None:
    held = hold(on_s3, LOCK_FILE)
    OutputFolder(on_s3.uri).delete(LOCK_FILE)

    with pytest.raises(OutputLostError, match=r"\.lock was deleted"):
        held.check()

    held.release()
    assert not on_s3.exists(LOCK_FILE)


# --- Stores that know less --------------------------------------------------------------------


def test_a_store_that_ignores_conditional_writes_is_detected(s3, monkeypatch) -> None:
    monkeypatch.setattr(output_lease, "LEASE_S", LEASE_S)
    folder = OutputFolder(f"s3://plain/{uuid.uuid4().hex}")
    held = hold(folder, LOCK_FILE)
    assert not held.checks_conditions
    held.check()

    with Starter(folder.uri, "south") as second:
        assert second.ask("claim").startswith("busy")
    held.release()
    assert not folder.exists(LOCK_FILE)


def test_an_overwritten_lease_on_a_plain_store_is_lost(s3) -> None:
    folder = OutputFolder(f"s3://plain/{uuid.uuid4().hex}")
    held = hold(folder, LOCK_FILE)
    folder.write_bytes(LOCK_FILE, b'{"pid": 7, "host": "south"}')

    with pytest.raises(OutputLostError, match="process 7 on south"):
        held.check()

    held.release()
    assert folder.exists(LOCK_FILE)


@pytest.fixture
def no_flock(monkeypatch):
    """Answer as a network disk that was mounted without locks."""

    def refuse(*_) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(versioned_file, "_SETTLE_S", 0.05)
    monkeypatch.setattr(versioned_file.LocalFile, "settle_s", 0.05)


def test_a_disk_without_flock_uses_leases(local_folder, no_flock) -> None:
    held = hold(local_folder, LOCK_FILE)
    with pytest.raises(OutputBusyError):
        hold(local_folder, LOCK_FILE)
    held.check()

    held.release()
    again = hold(local_folder, LOCK_FILE)
    with pytest.raises(OutputBusyError):
        hold(local_folder, LOCK_FILE)
    again.release()

    assert local_folder.list() == []
