"""What a killed training leaves in the temporary directory goes with the next one."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from tests.engines.elastic.training import Training, write_numbers

from elasticdl import scratch

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(240)]

ARGUMENTS = ("--num_workers=2", "--minibatch_size=16", "--checkpoint_steps=10")


@pytest.fixture
def temporary():
    """Return a folder with a short path, for TMPDIR: it holds sockets."""
    path = Path(tempfile.mkdtemp(prefix="t-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def kill_all_of(training):
    """Kill the driver and whatever it has started, the fork server too."""
    driver = psutil.Process(training._process.pid)
    processes = [driver, *driver.children(recursive=True)]
    # The server is a child of nobody.
    processes += [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(training.temporary) in " ".join(process.info["cmdline"] or ())
    ]
    for process in processes:
        process.send_signal(signal.SIGKILL)
    training.kill()


def test_a_training_on_workers_that_was_killed_leaves_nothing_after_the_next(tmp_path, temporary):
    data = write_numbers(tmp_path / "numbers.recordio")
    foreign = temporary / "edl-of-another-program"
    foreign.mkdir()
    slow = (f"--data={data}", "--params=pause_s=0.1", *ARGUMENTS)
    first = Training(tmp_path / "first", slow, environment={"TMPDIR": str(temporary)})
    first.temporary = temporary
    with first:
        first.wait_for(lambda: len(first.events("step_committed")) > 3, "some steps")
        kill_all_of(first)
    left = set(temporary.iterdir()) - {foreign}
    assert left

    with Training(
        tmp_path / "second", (f"--data={data}", *ARGUMENTS), environment={"TMPDIR": str(temporary)}
    ) as second:
        assert second._process.wait(120) == 0, second.log()

    names = {path.name for path in temporary.iterdir()}
    # PyTorch's cache of compiled code is one for all programs of a user.
    assert {name for name in names if not name.startswith("torchinductor_")} == {foreign.name}


def test_the_folders_of_a_training_that_lives_stay(tmp_path, temporary):
    data = write_numbers(tmp_path / "numbers.recordio")
    arguments = (f"--data={data}", "--params=pause_s=0.3", *ARGUMENTS)
    with Training(
        tmp_path / "first", arguments, environment={"TMPDIR": str(temporary)}
    ) as training:
        training.wait_for(lambda: len(training.events("step_committed")) > 0, "a step")
        before = {path for path in temporary.rglob("*") if path.is_socket()}

        scratch.remove_leftovers(temporary)

        assert before
        assert all(path.exists() for path in before)


KERAS = """
import keras
import tensorflow as tf

def custom_model():
    return keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])

def data_schema():
    return [{"name": "number", "shape": [1], "dtype": "int64"}]

def feed(dataset, mode, _):
    def pairs(text):
        record = tf.io.parse_single_example(text, {"number": tf.io.FixedLenFeature([1], tf.int64)})
        # Compiled by autograph, because of the `if`.
        number = tf.cast(record["number"], tf.float32)
        if number[0] > 500:
            number = number / 2
        return number, number
    return dataset.map(pairs)

def loss(labels, predictions):
    return keras.losses.mean_squared_error(labels, predictions)

def optimizer():
    return keras.optimizers.SGD(1e-9)
"""


def test_code_that_autograph_made_goes_as_well(tmp_path, temporary):
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "model.py").write_text(KERAS)
    data = write_numbers(tmp_path / "numbers.recordio")
    command = [
        sys.executable, "-m", "elasticdl.cli.main", "train", f"--model_zoo={tmp_path / 'zoo'}",
        "--model_def=model", f"--data={data}", f"--output={tmp_path / 'model'}",
    ]  # fmt: skip
    environment = {**os.environ, "TMPDIR": str(temporary)}
    killed = subprocess.Popen([*command, "--num_epochs=1000"], env=environment)
    deadline = time.monotonic() + 60
    while not any(temporary.rglob("__autograph_generated_file*.py")):
        assert killed.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    assert [path.name[:4] for path in temporary.iterdir()] == ["edl-"]

    subprocess.run([*command, "--max_steps=1"], env=environment, check=True)

    assert [path.name for path in temporary.iterdir()] == []


LOCAL_RAY = """
import ray
from elasticdl.engines.elastic.ray_cluster import local_ray
with local_ray(1):
    print("works", ray.get(ray.remote(lambda: 7).remote()))
    print(ray._private.worker._global_node.get_session_dir_path())
"""


def test_ray_starts_where_the_temporary_folder_has_a_long_path(tmp_path):
    folder = tmp_path / "a-job-of-the-queue-of-a-supercomputer"
    folder.mkdir()

    done = subprocess.run(
        [sys.executable, "-c", LOCAL_RAY],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "works 7" in done.stdout, done.stderr
    assert list(folder.iterdir()) == []
    session = Path(done.stdout.splitlines()[-1])
    # Within the folder that is this user's alone.
    assert session.parents[2] == Path("/tmp")
    assert not session.parent.exists()
