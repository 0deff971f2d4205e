"""A run's state is found again whole, whatever happened while it was written."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from elasticdl.artifacts import checkpoint_store as checkpoint_module
from elasticdl.artifacts.checkpoint_store import Checkpoint, CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.errors import CorruptCheckpointError, OutputError, UsageError


def at(step: int, **metadata) -> Checkpoint:
    return Checkpoint(step, {"w": np.full(2, step, np.float32)}, metadata)


def saved(folder, *steps: int, **options) -> CheckpointStore:
    store = CheckpointStore(folder, **options)
    for step in steps:
        store.save(at(step))
    return store


def files_of(folder, step: int) -> dict[str, str]:
    """Return the names of a checkpoint's files by what they hold."""
    name = f"checkpoints/step-{step:010d}"
    return {file.split("-")[0].split(".")[0]: f"{name}/{file}" for file in folder.list(name)}


def damage(folder, step: int, what: str = "tensors") -> None:
    name = files_of(folder, step)[what]
    data = folder.read_bytes(name)
    folder.write_bytes(name, data[:-1] + bytes([data[-1] ^ 1]))


# --- Saving and finding -----------------------------------------------------------------------


def test_a_checkpoint_survives_a_round_trip(folder) -> None:
    state = {
        "model/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
        "optimizer/step": np.int64(7),
        "seed": np.array([1, 2], np.uint32),
        "empty": np.zeros((0, 3), bool),
    }
    metadata = {"ledger": {"epoch": 1, "done": [0, 2]}, "best": float("inf"), "name": "ä"}

    CheckpointStore(folder).save(Checkpoint(12, state, metadata))
    found = CheckpointStore(folder).latest().checkpoint

    assert (found.step, found.metadata, set(found.state)) == (12, metadata, set(state))
    for name, array in state.items():
        np.testing.assert_array_equal(found.state[name], array, strict=True)


def test_the_newest_checkpoint_is_found(folder) -> None:
    assert saved(folder, 9, 10, 100).latest().checkpoint.step == 100


def test_a_new_store_has_no_checkpoints(folder) -> None:
    store = CheckpointStore(folder)

    assert (store.latest(), store.best(), store.steps()) == (None, None, [])


def test_saving_returns_step_size_and_time(folder) -> None:
    result = CheckpointStore(folder).save(at(3))

    sizes = [len(folder.read_bytes(name)) for name in files_of(folder, 3).values()]
    assert (result.step, result.num_bytes) == (3, sum(sizes))
    assert 0 < result.write_s == result.blocked_s


def test_saving_a_step_again_replaces_it(folder) -> None:
    store = CheckpointStore(folder)
    store.save(at(3, epoch=0))
    store.save(at(3, epoch=1))

    assert store.latest().checkpoint.metadata == {"epoch": 1}
    assert len(files_of(folder, 3)) == 3


def test_numpy_values_in_metadata_are_loaded_as_numbers_and_lists(folder) -> None:
    store = CheckpointStore(folder)
    store.save(at(1, best=np.float32(0.5), states=np.array([1, 2]), done=np.bool_(True)))

    assert store.latest().checkpoint.metadata == {"best": 0.5, "states": [1, 2], "done": True}


def test_metadata_that_is_not_json_is_refused_and_writes_nothing(folder) -> None:
    with pytest.raises(
        OutputError, match="step 1 contains a value that JSON cannot .* state of a callback"
    ):
        CheckpointStore(folder).save(at(1, model=object()))

    assert folder.list("checkpoints") == []


def test_a_tensor_that_cannot_be_stored_keeps_the_old_checkpoint(folder) -> None:
    store = saved(folder, 1)
    with pytest.raises(OutputError, match="dtype"):
        store.save(Checkpoint(2, {"names": np.array(["a"])}, {}))

    assert folder.list("checkpoints") == ["step-0000000001"]


def test_a_full_disk_is_reported_and_keeps_existing_checkpoints(local_folder, limited_room) -> None:
    store = saved(local_folder, 1)
    large = Checkpoint(2, {"w": np.zeros(1000)}, {})

    with pytest.raises(OutputError, match=r"step-0000000002: no space left.*--output"):
        store.save(large)

    assert local_folder.list("checkpoints") == ["step-0000000001"]
    assert len(list(local_folder.local_path("checkpoints").iterdir())) == 1


# --- Keeping ----------------------------------------------------------------------------------


def test_the_newest_checkpoints_are_kept(folder) -> None:
    assert saved(folder, 1, 2, 3, 4, keep_max=2).steps() == [3, 4]


def test_keeping_fewer_than_two_checkpoints_is_refused(folder) -> None:
    with pytest.raises(UsageError, match="keep_checkpoint_max=1"):
        CheckpointStore(folder, keep_max=1)


def test_the_best_checkpoint_is_kept_besides_the_newest(folder) -> None:
    store = CheckpointStore(folder, keep_max=2)
    for step in (1, 2, 3, 4):
        store.save(at(step), best=step == 1)

    assert store.steps() == [1, 3, 4]
    assert store.best().step == 1


def test_a_new_best_checkpoint_replaces_the_old_one(folder) -> None:
    store = CheckpointStore(folder, keep_max=2)
    for step in (1, 2, 3, 4):
        store.save(at(step), best=step < 3)

    assert (store.steps(), store.best_step()) == ([2, 3, 4], 2)


def test_saving_an_earlier_step_removes_later_checkpoints(folder) -> None:
    store = saved(folder, 1, 2, 3)
    damage(folder, 3)

    store.save(at(2))

    assert store.steps() == [1, 2]


# --- Damage -----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["tensors", "metadata", "manifest"])
def test_a_damaged_checkpoint_is_skipped_and_named(folder, what) -> None:
    store = saved(folder, 1, 2)
    damage(folder, 2, what)

    found = store.latest()

    assert found.checkpoint.step == 1
    assert len(found.damaged) == 1
    assert files_of(folder, 2)[what] in found.damaged[0]


@pytest.mark.parametrize("what", ["tensors", "metadata"])
def test_a_checkpoint_with_a_missing_file_is_skipped(folder, what) -> None:
    store = saved(folder, 1, 2)
    folder.delete(files_of(folder, 2)[what])

    assert store.latest().checkpoint.step == 1


def test_a_truncated_checkpoint_is_skipped(folder) -> None:
    store = saved(folder, 1, 2)
    name = files_of(folder, 2)["tensors"]
    folder.write_bytes(name, folder.read_bytes(name)[:-4])

    assert store.latest().checkpoint.step == 1


def test_a_checkpoint_under_another_steps_name_is_skipped(local_folder) -> None:
    store = saved(local_folder, 1, 2)
    path = local_folder.local_path("checkpoints")
    (path / "step-0000000002").rename(path / "step-0000000009")

    assert store.latest().checkpoint.step == 1


def test_having_only_damaged_checkpoints_raises_and_names_all(folder) -> None:
    store = saved(folder, 1, 2)
    damage(folder, 1)
    damage(folder, 2, "manifest")

    with pytest.raises(CorruptCheckpointError) as caught:
        store.latest()

    assert files_of(folder, 1)["tensors"] in str(caught.value)
    assert files_of(folder, 2)["manifest"] in str(caught.value)


def test_an_unfinished_upload_is_not_a_checkpoint(folder) -> None:
    store = saved(folder, 1)
    folder.write_bytes("checkpoints/step-0000000002/tensors-0.safetensors", b"")

    assert store.latest().damaged == ()
    store.save(at(3))
    assert folder.list("checkpoints") == ["step-0000000001", "step-0000000003"]


def test_a_checkpoint_of_another_version_is_never_skipped(folder) -> None:
    store = saved(folder, 1, 2)
    name = files_of(folder, 2)["manifest"]
    manifest = json.loads(folder.read_bytes(name))
    folder.write_bytes(name, json.dumps({"step": 2, "format_version": 99}).encode())
    assert manifest["format_version"] == 1

    with pytest.raises(OutputError, match="format version 99") as caught:
        store.latest()
    assert not isinstance(caught.value, CorruptCheckpointError)


@pytest.mark.parametrize("text", [b"", b"[]", b'{"step": "x"}'])
def test_a_damaged_best_checkpoint_file_is_named(folder, text) -> None:
    store = saved(folder, 1)
    folder.write_bytes("checkpoints/best.json", text)

    with pytest.raises(CorruptCheckpointError, match=r"best\.json: expected"):
        store.best()


def test_on_a_store_a_step_saved_again_is_always_complete(monkeypatch) -> None:
    folder = OutputFolder("memory://saved-again/output")
    store = CheckpointStore(folder)
    store.save(at(1, epoch=0))
    system = type(folder._storage._fs)
    put = system.put_file

    def die_before_the_manifest(fs, source, target, **options) -> None:
        if target.endswith("manifest.json"):
            raise KeyboardInterrupt
        put(fs, source, target, **options)

    monkeypatch.setattr(system, "put_file", die_before_the_manifest)
    with pytest.raises(KeyboardInterrupt):
        store.save(Checkpoint(1, {"w": np.zeros(3)}, {"epoch": 1}))

    found = store.latest()
    assert (found.checkpoint.metadata, found.damaged) == ({"epoch": 0}, ())


# --- In the background ------------------------------------------------------------------------


class SlowFolder(OutputFolder):
    """A folder in which nothing is published until it may be."""

    def __init__(self, uri) -> None:
        super().__init__(uri)
        self.may_publish = threading.Event()
        self.num_staged = 0

    def staging(self, name):
        self.num_staged += 1
        self.may_publish.wait(20)
        return super().staging(name)


def test_saving_in_the_background_does_not_wait_for_the_disk(tmp_path) -> None:
    folder = SlowFolder(tmp_path)
    with CheckpointStore(folder) as store:
        store.save_in_background(at(1))
        steps_meanwhile = store.steps()
        folder.may_publish.set()

    assert (steps_meanwhile, store.steps()) == ([], [1])


def test_one_checkpoint_is_written_at_a_time(tmp_path) -> None:
    folder = SlowFolder(tmp_path)
    with CheckpointStore(folder) as store:
        store.save_in_background(at(1))
        timer = threading.Timer(0.2, folder.may_publish.set)
        timer.start()
        begin = time.perf_counter()
        store.save_in_background(at(2))
        waited_s = time.perf_counter() - begin
        steps_then = store.steps()
        timer.join()

    assert steps_then[0] == 1
    assert waited_s > 0.1
    assert [result.step for result in store.take_saved()] == [1, 2]


def test_the_time_that_saving_blocks_is_measured(tmp_path) -> None:
    folder = SlowFolder(tmp_path)
    with CheckpointStore(folder) as store:
        store.save_in_background(at(1))
        blocked_by_submitting_s = store.last_blocked_s
        threading.Timer(0.2, folder.may_publish.set).start()
        store.wait()
        [result] = store.take_saved()

    assert blocked_by_submitting_s < 0.1 < result.blocked_s <= result.write_s + 0.1
    assert store.last_blocked_s == result.blocked_s


def test_a_checkpoint_is_not_reported_while_it_is_being_written(tmp_path) -> None:
    folder = SlowFolder(tmp_path)
    with CheckpointStore(folder) as store:
        store.save_in_background(at(1))
        assert store.take_saved() == []
        folder.may_publish.set()
        store.wait()
        assert [result.step for result in store.take_saved()] == [1]
        assert store.take_saved() == []


def test_metadata_is_serialized_in_the_calling_thread(tmp_path) -> None:
    threads = []

    class Watched(np.ndarray):
        def tolist(self) -> list[float]:
            threads.append(threading.current_thread())
            return super().tolist()

    with CheckpointStore(OutputFolder(tmp_path)) as store:
        store.save_in_background(at(1, states=np.ones(1).view(Watched)))

    assert threads == [threading.main_thread()]


@pytest.mark.parametrize("call", ["wait", "save", "save_in_background"])
def test_an_error_in_the_background_surfaces_at_the_next_call(folder, call) -> None:
    store = CheckpointStore(folder)
    store.save_in_background(Checkpoint(1, {"names": np.array(["a"])}, {}))

    with pytest.raises(OutputError, match="dtype"):
        getattr(store, call)(*([] if call == "wait" else [at(2)]))

    store.save(at(3))
    assert store.steps() == [3]


def test_an_error_in_the_background_surfaces_at_the_end(folder) -> None:
    store = CheckpointStore(folder)
    with pytest.raises(OutputError, match="dtype"), store:
        store.save_in_background(Checkpoint(1, {"names": np.array(["a"])}, {}))


def test_a_raised_error_is_not_hidden_by_one_in_the_background(folder) -> None:
    store = CheckpointStore(folder)

    def fail_twice() -> None:
        with store:
            store.save_in_background(Checkpoint(1, {"names": np.array(["a"])}, {}))
            raise KeyError

    with pytest.raises(KeyError):
        fail_twice()


def test_the_best_can_be_marked_in_the_background(folder) -> None:
    with CheckpointStore(folder) as store:
        store.save_in_background(at(1), best=True)

    assert store.best_step() == 1


# --- Death ------------------------------------------------------------------------------------

SAVE_FOREVER = """
import sys
import numpy as np
from elasticdl.artifacts.checkpoint_store import Checkpoint, CheckpointStore
from elasticdl.artifacts.folder import OutputFolder

store = CheckpointStore(OutputFolder(sys.argv[1]), keep_max=2)
restored = store.latest()
step = restored.checkpoint.step if restored else 0
while True:
    step += 1
    state = {"w": np.full(1000, step), "step": np.int64(step)}
    store.save_in_background(Checkpoint(step, state, {"step": step}), best=step % 5 == 0)
    if step % 3 == 0:  # as a resumed run would
        store.save(Checkpoint(step, state, {"step": step}))
    print(step, flush=True)
"""


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_process_killed_at_any_moment_leaves_a_complete_checkpoint(
    local_folder, can_exchange
) -> None:
    code = SAVE_FOREVER
    if not can_exchange:
        # Python itself looks for files named after the platform, once.
        code = "import sys, sysconfig\nsysconfig.get_paths()\nsys.platform = 'other'\n" + code
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    chance = random.Random(3)
    reached = 0
    for _ in range(10):
        worker = subprocess.Popen(
            [sys.executable, "-c", code, local_folder.uri], stdout=subprocess.PIPE, env=environment
        )
        for _ in range(3):
            reached = int(worker.stdout.readline())
        time.sleep(chance.uniform(0, 0.05))
        worker.send_signal(signal.SIGKILL)
        told = worker.communicate()[0].split()
        reached = int(told[-1]) if told else reached

        local_folder.remove_stale()
        store = CheckpointStore(local_folder, keep_max=2)
        found = store.latest()
        step = found.checkpoint.step
        assert found.damaged == ()
        # One that was told may still have been in the thread's hands.
        assert step >= reached - 1
        assert found.checkpoint.metadata == {"step": step}
        np.testing.assert_array_equal(found.checkpoint.state["w"], np.full(1000, step))
        if store.best_step() is not None:
            assert store.best().step % 5 == 0
    assert checkpoint_module.MIN_KEPT <= len(store.steps()) <= 4
