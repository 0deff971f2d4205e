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
from elasticdl.artifacts.claim import GENERATION_FILE, JOB_FILE, LOCK_FILE, claim
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
        "from elasticdl.artifacts.claim import claim\n"
        "from elasticdl.artifacts.folder import OutputFolder\n"
        "from elasticdl.job import Job\n"
        "held = claim(OutputFolder(sys.argv[1]), Job.from_json(sys.argv[2]))\n"
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


def test_the_first_claim_writes_the_job_file(folder) -> None:
    with claim(folder, JOB) as held:
        assert (held.resumed, held.generation) == (False, 1)

    assert Job.from_json(folder.read_bytes(JOB_FILE).decode()) == JOB


def test_the_same_job_resumes_with_the_next_generation(folder) -> None:
    claim(folder, JOB).release()

    with claim(folder, JOB) as held:
        assert (held.resumed, held.generation) == (True, 2)


def test_a_job_resumes_with_more_epochs_and_remembers_them(folder) -> None:
    longer = replace(JOB, training=TrainingOptions(num_epochs=7))
    claim(folder, JOB).release()

    claim(folder, longer).release()

    assert Job.from_json(folder.read_bytes(JOB_FILE).decode()) == longer


def test_another_job_is_refused_with_the_exact_differences(folder) -> None:
    claim(folder, JOB).release()
    other = replace(with_params(units=[10, 5], rate=0.1), data="other")

    with pytest.raises(OutputTakenError) as caught:
        claim(folder, other)

    differing = [line for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert differing == [
        "  data: 'data/*.recordio' in the folder, 'other' in this command",
        "  model.params.rate: 0.01 in the folder, 0.1 in this command",
    ]
    assert "--output" in str(caught.value)


def test_a_param_on_only_one_side_is_a_difference(folder) -> None:
    claim(folder, with_params(a=None)).release()

    with pytest.raises(OutputTakenError) as caught:
        claim(folder, with_params(b=1))

    assert "model.params.a: None in the folder, nothing in this command" in str(caught.value)
    assert "model.params.b: nothing in the folder, 1 in this command" in str(caught.value)


@pytest.mark.parametrize(
    ("before", "now", "is_same_file"),
    [("net", "net.Net", True), ("a.net.Net", "a.net", True), ("net", "nets", False)],
)
def test_two_names_of_one_model_are_explained(folder, before, now, is_same_file) -> None:
    first, second = (
        replace(JOB, model=replace(JOB.model, model_def=name)) for name in (before, now)
    )
    claim(folder, first).release()
    advice = f"If both names mean the same model, give --model_def={before} to resume."

    with pytest.raises(OutputTakenError) as caught:
        claim(folder, second)
    assert (advice in str(caught.value)) is is_same_file

    with pytest.raises(OutputTakenError) as caught:
        claim(folder, replace(second, model=replace(second.model, params={"units": 3})))
    assert advice not in str(caught.value)


def test_true_differs_from_1(folder) -> None:
    claim(folder, with_params(a=True)).release()

    with pytest.raises(OutputTakenError, match="True in the folder, 1 in this command"):
        claim(folder, with_params(a=1))


def test_a_list_and_a_tuple_are_the_same_request(folder) -> None:
    claim(folder, with_params(a=(1, 2))).release()

    with claim(folder, with_params(a=[1, 2])) as held:
        assert held.resumed


def test_a_refused_claim_changes_nothing(folder) -> None:
    claim(folder, JOB).release()
    before = (folder.list(), folder.read_bytes(JOB_FILE), folder.read_bytes(GENERATION_FILE))

    with pytest.raises(OutputTakenError):
        claim(folder, with_params())

    after = (folder.list(), folder.read_bytes(JOB_FILE), folder.read_bytes(GENERATION_FILE))
    assert after == before


def test_a_folder_of_user_files_is_refused_and_left_alone(folder) -> None:
    folder.write_bytes("thesis.tex", b"")
    path = folder.local_path()
    touched = path.stat().st_mtime_ns if path else None

    with pytest.raises(OutputTakenError, match=r"not empty .*it contains thesis\.tex"):
        claim(folder, JOB)

    assert folder.list() == ["thesis.tex"]
    assert touched == (path.stat().st_mtime_ns if path else None)


@pytest.mark.parametrize(
    "name", ["events.jsonl", "tracking.json", "logs/train/events", "flower/state.db"]
)
def test_files_of_a_job_that_never_began_do_not_block_a_claim(folder, name) -> None:
    folder.write_bytes(name, b"")

    claim(folder, JOB).release()

    assert folder.read_bytes(name) == b""


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"\xff", b'{"command": "train"}'])
def test_a_damaged_job_file_is_named(folder, text) -> None:
    folder.write_bytes(JOB_FILE, text)

    with pytest.raises(OutputError, match=r"output/job\.json: cannot be read as a job"):
        claim(folder, JOB)


def test_a_damaged_generation_is_named(folder) -> None:
    claim(folder, JOB).release()
    folder.write_bytes(GENERATION_FILE, b"x")

    with pytest.raises(OutputError, match=r"output/\.generation: expected an integer"):
        claim(folder, JOB)


# --- One process ------------------------------------------------------------------------------


def test_claiming_a_held_output_names_the_holder(folder) -> None:
    with (
        claim(folder, JOB),
        pytest.raises(OutputBusyError, match=rf"process {os.getpid()} on .* --output"),
    ):
        claim(folder, JOB)


def test_a_released_output_shows_no_lock(folder) -> None:
    claim(folder, JOB).release()

    assert LOCK_FILE not in folder.list()


def test_releasing_twice_does_not_release_the_next_claim(folder) -> None:
    first = claim(folder, JOB)
    first.release()
    with claim(folder, JOB):
        first.release()
        with pytest.raises(OutputBusyError):
            claim(folder, JOB)


def test_a_second_process_gets_the_pid_of_the_first(local_folder) -> None:
    holder = claim_elsewhere(local_folder)

    with pytest.raises(OutputBusyError, match=f"process {holder.pid} on "):
        claim(local_folder, JOB)

    holder.kill()
    holder.communicate()


def test_an_output_is_free_after_its_holder_was_killed(local_folder) -> None:
    holder = claim_elsewhere(local_folder)
    holder.send_signal(signal.SIGKILL)
    holder.communicate()

    with claim(local_folder, JOB) as held:
        assert (held.resumed, held.generation) == (True, 2)


@pytest.mark.parametrize("how", ["removed", "renamed", "replaced"])
def test_the_holder_of_a_lost_folder_cannot_write(local_folder, how) -> None:
    path = Path(local_folder.uri)
    held = claim(local_folder, JOB)
    if how == "renamed":
        path.rename(path.with_name("elsewhere"))
    else:
        shutil.rmtree(path)
    if how == "replaced":
        other = OutputFolder(str(path))
        second = claim(other, JOB)

    with pytest.raises(OutputLostError, match="it was removed, renamed or replaced"):
        local_folder.write_bytes("a", b"a")
    held.release()

    assert path.exists() == (how == "replaced")
    if how == "replaced":
        other.write_bytes("b", b"b")
        with pytest.raises(OutputBusyError):
            claim(OutputFolder(str(path)), JOB)
        second.release()


def test_a_child_that_outlives_its_parent_does_not_hold_the_output(local_folder) -> None:
    held = claim(local_folder, JOB)
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
        lock._held_descriptors.discard(held._lock._descriptor)
        os.close(held._lock._descriptor)
        held._lock._descriptor = None

        with claim(local_folder, JOB) as again:
            assert again.generation == 2
    finally:
        here.close()
        os.waitpid(child, 0)


def test_a_store_is_free_when_its_holder_on_this_machine_is_dead(folder) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with claim(folder, JOB):
        holder = json.loads(folder.read_bytes(LOCK_FILE))
    folder.write_bytes(LOCK_FILE, json.dumps({**holder, "pid": gone.pid}).encode())

    with claim(folder, JOB) as held:
        assert held.generation == 2


def test_a_reused_process_id_holds_nothing() -> None:
    folder = OutputFolder("memory://number-again/output")
    with claim(folder, JOB):
        holder = json.loads(folder.read_bytes(LOCK_FILE))
    folder.write_bytes(LOCK_FILE, json.dumps({**holder, "started": "1"}).encode())

    with claim(folder, JOB) as held:
        assert held.generation == 2


def test_a_lock_taken_during_its_release_holds(local_folder, monkeypatch) -> None:
    first = claim(local_folder, JOB)
    flock = fcntl.flock

    def release_first(*arguments) -> None:
        monkeypatch.undo()
        first.release()
        flock(*arguments)

    monkeypatch.setattr(lock.fcntl, "flock", release_first)
    with claim(local_folder, JOB), pytest.raises(OutputBusyError):
        claim(local_folder, JOB)


def test_a_store_held_by_another_machine_says_how_to_free_it() -> None:
    folder = OutputFolder("memory://held-elsewhere/output")
    holder = {"pid": 7, "host": "far-away", "claimed": "yesterday"}
    folder.write_bytes(LOCK_FILE, json.dumps(holder).encode())

    with pytest.raises(OutputBusyError, match=r"process 7 on far-away .* delete memory://.*\.lock"):
        claim(folder, JOB)


def test_partial_files_of_a_killed_run_are_removed(local_folder) -> None:
    claim(local_folder, JOB).release()
    leftover = local_storage.temporary_path(local_folder.local_path("checkpoints/step-0000000001"))
    leftover.mkdir(parents=True)

    claim(local_folder, JOB).release()

    assert not leftover.exists()


def test_partial_files_of_a_running_job_are_kept(local_folder) -> None:
    with claim(local_folder, JOB), local_folder.staging("result") as path:
        with pytest.raises(OutputBusyError):
            claim(local_folder, JOB)
        assert path.exists()
