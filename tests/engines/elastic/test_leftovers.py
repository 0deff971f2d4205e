"""What a killed training leaves in the temporary directory goes with the next one."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from tests.engines.elastic.training import COUNTING, Training, write_numbers

from elasticdl import scratch

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(240)]

ARGUMENTS = ("--num_workers=2", "--minibatch_size=16", "--checkpoint_steps=10")


def short_folder():
    """Return a new folder with a short path, for TMPDIR: it holds sockets."""
    return Path(tempfile.mkdtemp(prefix="t-"))


@pytest.fixture
def temporary():
    path = short_folder()
    yield path
    shutil.rmtree(path, ignore_errors=True)


def kill_all_of(training, temporary):
    """Kill the driver and whatever it has started, the fork server too."""
    driver = psutil.Process(training._process.pid)
    processes = [driver, *driver.children(recursive=True)]
    # The server is a child of nobody.
    processes += [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(temporary) in " ".join(process.info["cmdline"] or ())
    ]
    for process in processes:
        process.send_signal(signal.SIGKILL)
    training.kill()


@dataclass(frozen=True)
class Killed:
    """What was seen in the temporary folder of a training on workers, while it lived and later.

    Attributes:
        sockets: Those of the training, while it lived.
        kept: Those of them that were still there when another run had looked for leftovers.
        left: What was there when all its processes had been killed.
        after: What was there after another run.
        foreign: The folder of another program.
    """

    sockets: set[Path]
    kept: set[Path]
    left: set[Path]
    after: set[Path]
    foreign: Path


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Train on workers, kill all of it, and run something else."""
    folder, temporary = tmp_path_factory.mktemp("killed"), short_folder()
    data = write_numbers(folder / "numbers.recordio")
    foreign = temporary / "edl-of-another-program"
    foreign.mkdir()
    environment = {"TMPDIR": str(temporary)}
    slow = (f"--data={data}", "--params=pause_s=0.1", *ARGUMENTS)
    with Training(folder / "first", slow, environment=environment) as first:
        first.wait_for(lambda: len(first.events("step_committed")) > 3, "some steps")
        sockets = {path for path in temporary.rglob("*") if path.is_socket()}
        scratch.remove_leftovers(temporary)
        kept = {path for path in sockets if path.exists()}
        kill_all_of(first, temporary)
    left = set(temporary.iterdir())

    another = [
        sys.executable, "-m", "elasticdl.cli.main", "train", f"--model_zoo={COUNTING.parent}",
        f"--model_def={COUNTING.stem}", f"--data={data}", f"--output={folder / 'second'}",
        "--max_steps=1",
    ]  # fmt: skip
    subprocess.run(another, env={**os.environ, **environment}, check=True, capture_output=True)

    yield Killed(sockets, kept, left, set(temporary.iterdir()), foreign)
    shutil.rmtree(temporary, ignore_errors=True)


def test_leftovers_of_a_killed_training_are_removed_by_the_next(killed):
    assert killed.left > {killed.foreign}
    # PyTorch's cache of compiled code is one for all programs of a user.
    after = {path for path in killed.after if not path.name.startswith("torchinductor_")}
    assert after == {killed.foreign}


def test_the_folders_of_a_running_training_are_kept(killed):
    assert killed.sockets
    assert killed.kept == killed.sockets


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


def test_code_generated_by_autograph_is_removed(tmp_path, temporary):
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
from pathlib import Path
import ray
from elasticdl.engines.elastic.ray_cluster import local_ray
with local_ray(1):
    print("works", ray.get(ray.remote(lambda: 7).remote()))
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    print(any(not each.stat().st_mode & 0o077 for each in session.parents))
    print(session)
"""


def test_ray_starts_with_a_long_path_of_the_temporary_folder(tmp_path):
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
    *_, is_closed, session = done.stdout.splitlines()
    session = Path(session)
    # Within a folder that is this user's alone.
    assert is_closed == "True"
    assert session.parents[2] == Path("/tmp")
    assert not session.parent.exists()
