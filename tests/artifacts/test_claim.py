"""One process at a time, one job for good, and never a user's own folder."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from elasticdl.artifacts import local_storage, lock
from elasticdl.artifacts.claim import GENERATION_FILE, JOB_FILE, LOCK_FILE
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.errors import OutputBusyError, OutputError, OutputLostError, OutputTakenError
from elasticdl.job import Job, ModelReference, TrainingOptions

JOB = Job(
    command="train",
    data="data/*.recordio",
    output="output",
    model=ModelReference(zoo="zoo", model_def="mnist", params={"units": [10, 5], "rate": 0.01}),
)


def with_params(**params) -> Job:
    return replace(JOB, model=replace(JOB.model, params=params))


def claim_elsewhere(folder) -> subprocess.Popen[bytes]:
    """Start a process that claims the folder and holds it until it is ended."""
    code = (
        "import sys, time\n"
        "from elasticdl.artifacts.folder import OutputFolder\n"
        "from elasticdl.job import Job\n"
        "claim = OutputFolder(sys.argv[1]).claim(Job.from_json(sys.argv[2]))\n"
        "print('held', flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", code, folder.uri, JOB.to_json()],
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert holder.stdout.readline() == b"held\n"
    return holder


# --- One job ----------------------------------------------------------------------------------


def test_the_first_claim_writes_the_job_down(folder) -> None:
    with folder.claim(JOB) as claim:
        assert (claim.resumed, claim.generation) == (False, 1)

    assert Job.from_json(folder.read_bytes(JOB_FILE).decode()) == JOB


def test_the_same_job_resumes_with_the_next_generation(folder) -> None:
    folder.claim(JOB).release()

    with folder.claim(JOB) as claim:
        assert (claim.resumed, claim.generation) == (True, 2)


def test_a_job_resumes_with_more_epochs_and_remembers_them(folder) -> None:
    longer = replace(JOB, training=TrainingOptions(num_epochs=7))
    folder.claim(JOB).release()

    folder.claim(longer).release()

    assert Job.from_json(folder.read_bytes(JOB_FILE).decode()) == longer


def test_another_job_is_refused_with_exactly_what_differs(folder) -> None:
    folder.claim(JOB).release()
    other = replace(with_params(units=[10, 5], rate=0.1), data="other")

    with pytest.raises(OutputTakenError) as caught:
        folder.claim(other)

    differing = [line for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert differing == [
        "  data: 'data/*.recordio' there, 'other' asked for",
        "  model.params.rate: 0.01 there, 0.1 asked for",
    ]
    assert "--output" in str(caught.value)


def test_a_param_that_is_on_one_side_only_differs(folder) -> None:
    folder.claim(with_params(a=None)).release()

    with pytest.raises(OutputTakenError) as caught:
        folder.claim(with_params(b=1))

    assert "model.params.a: None there, nothing asked for" in str(caught.value)
    assert "model.params.b: nothing there, 1 asked for" in str(caught.value)


def test_true_is_not_one(folder) -> None:
    folder.claim(with_params(a=True)).release()

    with pytest.raises(OutputTakenError, match="True there, 1 asked for"):
        folder.claim(with_params(a=1))


def test_a_list_and_a_tuple_are_the_same_request(folder) -> None:
    folder.claim(with_params(a=(1, 2))).release()

    with folder.claim(with_params(a=[1, 2])) as claim:
        assert claim.resumed


def test_a_refused_claim_changes_nothing(folder) -> None:
    folder.claim(JOB).release()
    before = (folder.list(), folder.read_bytes(JOB_FILE), folder.read_bytes(GENERATION_FILE))

    with pytest.raises(OutputTakenError):
        folder.claim(with_params())

    after = (folder.list(), folder.read_bytes(JOB_FILE), folder.read_bytes(GENERATION_FILE))
    assert after == before


def test_a_folder_of_the_users_is_refused_and_left_alone(folder) -> None:
    folder.write_bytes("thesis.tex", b"")
    path = folder.local_path()
    touched = path.stat().st_mtime_ns if path else None

    with pytest.raises(OutputTakenError, match=r"not empty .*it holds thesis\.tex"):
        folder.claim(JOB)

    assert folder.list() == ["thesis.tex"]
    assert touched == (path.stat().st_mtime_ns if path else None)


@pytest.mark.parametrize(
    "name", ["events.jsonl", "tracking.json", "logs/train/events", "flower/state.db"]
)
def test_what_a_job_left_that_never_began_is_no_obstacle(folder, name) -> None:
    folder.write_bytes(name, b"")

    folder.claim(JOB).release()

    assert folder.read_bytes(name) == b""


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"\xff", b'{"command": "train"}'])
def test_a_damaged_job_file_is_named(folder, text) -> None:
    folder.write_bytes(JOB_FILE, text)

    with pytest.raises(OutputError, match=r"output/job\.json: cannot be read as a job"):
        folder.claim(JOB)


def test_a_damaged_generation_is_named(folder) -> None:
    folder.claim(JOB).release()
    folder.write_bytes(GENERATION_FILE, b"x")

    with pytest.raises(OutputError, match=r"output/\.generation: expected a whole number"):
        folder.claim(JOB)


# --- One process ------------------------------------------------------------------------------


def test_a_held_output_is_busy_and_says_by_whom(folder) -> None:
    with (
        folder.claim(JOB),
        pytest.raises(OutputBusyError, match=rf"process {os.getpid()} on .* --output"),
    ):
        folder.claim(JOB)


def test_a_released_output_shows_no_lock(folder) -> None:
    folder.claim(JOB).release()

    assert LOCK_FILE not in folder.list()


def test_releasing_twice_does_not_release_the_next_claim(folder) -> None:
    first = folder.claim(JOB)
    first.release()
    with folder.claim(JOB):
        first.release()
        with pytest.raises(OutputBusyError):
            folder.claim(JOB)


def test_a_second_process_is_told_the_first_ones_number(local_folder) -> None:
    holder = claim_elsewhere(local_folder)

    with pytest.raises(OutputBusyError, match=f"process {holder.pid} on "):
        local_folder.claim(JOB)

    holder.kill()
    holder.communicate()


def test_an_output_is_free_again_when_its_holder_was_killed(local_folder) -> None:
    holder = claim_elsewhere(local_folder)
    holder.send_signal(signal.SIGKILL)
    holder.communicate()

    with local_folder.claim(JOB) as claim:
        assert (claim.resumed, claim.generation) == (True, 2)


@pytest.mark.parametrize("how", ["removed", "renamed", "replaced"])
def test_who_held_a_folder_that_is_gone_writes_nothing_more(local_folder, how) -> None:
    path = Path(local_folder.uri)
    claim = local_folder.claim(JOB)
    if how == "renamed":
        path.rename(path.with_name("elsewhere"))
    else:
        shutil.rmtree(path)
    if how == "replaced":
        other = OutputFolder(str(path))
        second = other.claim(JOB)

    with pytest.raises(OutputLostError, match="it was removed, renamed or replaced"):
        local_folder.write_bytes("a", b"a")
    claim.release()

    assert path.exists() == (how == "replaced")
    if how == "replaced":
        other.write_bytes("b", b"b")
        with pytest.raises(OutputBusyError):
            OutputFolder(str(path)).claim(JOB)
        second.release()


def test_a_child_that_outlives_its_parent_does_not_hold_the_output(local_folder) -> None:
    claim = local_folder.claim(JOB)
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        here.close()
        there.send(b"alive")
        there.recv(1)
        os._exit(0)
    there.close()
    try:
        here.recv(5)
        # As the death of this process would: the lock's file is closed, not released.
        lock._held_descriptors.discard(claim._lock._descriptor)
        os.close(claim._lock._descriptor)
        claim._lock._descriptor = None

        with local_folder.claim(JOB) as again:
            assert again.generation == 2
    finally:
        here.close()
        os.waitpid(child, 0)


def test_a_store_is_free_again_when_its_holder_is_dead_on_this_machine(folder) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with folder.claim(JOB):
        holder = json.loads(folder.read_bytes(LOCK_FILE))
    folder.write_bytes(LOCK_FILE, json.dumps({**holder, "pid": gone.pid}).encode())

    with folder.claim(JOB) as claim:
        assert claim.generation == 2


def test_a_process_number_that_was_given_out_again_holds_nothing() -> None:
    folder = OutputFolder("memory://number-again/output")
    with folder.claim(JOB):
        holder = json.loads(folder.read_bytes(LOCK_FILE))
    folder.write_bytes(LOCK_FILE, json.dumps({**holder, "started": "1"}).encode())

    with folder.claim(JOB) as claim:
        assert claim.generation == 2


def test_a_lock_taken_at_the_moment_of_its_release_holds(local_folder, monkeypatch) -> None:
    first = local_folder.claim(JOB)
    flock = fcntl.flock

    def release_first(*arguments) -> None:
        monkeypatch.undo()
        first.release()
        flock(*arguments)

    monkeypatch.setattr(lock.fcntl, "flock", release_first)
    with local_folder.claim(JOB), pytest.raises(OutputBusyError):
        local_folder.claim(JOB)


def test_a_store_held_by_another_machine_says_how_to_free_it() -> None:
    folder = OutputFolder("memory://held-elsewhere/output")
    holder = {"pid": 7, "host": "far-away", "claimed": "yesterday"}
    folder.write_bytes(LOCK_FILE, json.dumps(holder).encode())

    with pytest.raises(OutputBusyError, match=r"process 7 on far-away .* delete memory://.*\.lock"):
        folder.claim(JOB)


def test_what_a_killed_run_left_half_written_is_removed(local_folder) -> None:
    local_folder.claim(JOB).release()
    leftover = local_storage.temporary_path(local_folder.local_path("checkpoints/step-0000000001"))
    leftover.mkdir(parents=True)

    local_folder.claim(JOB).release()

    assert not leftover.exists()


def test_a_running_jobs_half_written_files_are_left_alone(local_folder) -> None:
    with local_folder.claim(JOB), local_folder.staging("result") as path:
        with pytest.raises(OutputBusyError):
            local_folder.claim(JOB)
        assert path.exists()
