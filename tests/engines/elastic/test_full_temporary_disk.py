"""A full disk of temporary files ends a job soon, with the reason."""

import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest
from tests.chaos.small_disk import CannotMountError, SmallDisk
from tests.engines.elastic.training import Training, write_numbers

from elasticdl import scratch

FULL = 6
SOON_S = 60.0


@pytest.fixture
def disk():
    # Sockets lie on it, so its path is short.
    folder = Path(tempfile.mkdtemp(prefix="t-"))
    try:
        made = SmallDisk(folder / "d")
    except CannotMountError as error:
        pytest.skip(str(error))
    yield made
    made.close()
    shutil.rmtree(folder, ignore_errors=True)


def test_a_disk_has_room_until_it_is_full(disk):
    assert scratch.has_room(disk.folder)
    disk.fill()
    assert not scratch.has_room(disk.folder)
    disk.make_room()
    assert scratch.has_room(disk.folder)
    assert list(disk.folder.iterdir()) == []


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.exhaustive
def test_a_full_disk_ends_the_job_and_the_same_command_resumes(tmp_path, disk):
    data = write_numbers(tmp_path / "numbers.recordio")
    arguments = [
        f"--data={data}", "--num_workers=2", "--minibatch_size=16", "--checkpoint_steps=10",
        "--num_epochs=20", "--params=pause_s=0.02",
    ]  # fmt: skip
    out = tmp_path / "out"

    with Training(out, arguments, environment={"TMPDIR": str(disk.folder)}) as training:
        training.wait_for(lambda: training.events("checkpointed"), "a checkpoint")
        disk.fill()
        # One that is replaced needs room, at the latest.
        os.kill(next(iter(training.workers().values())), signal.SIGKILL)
        began_s = time.monotonic()
        training.wait_for_the_end(expected=FULL)
        took_s = time.monotonic() - began_s
        assert f"the disk at {disk.folder}" in training.log()
        assert "has no room for temporary files" in training.log()
        disk.make_room()
        training.start()
        training.wait_for_the_end()

    assert took_s < SOON_S
    training.assert_each_record_counts(20)
