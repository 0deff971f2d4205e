"""A process of the job is frozen or killed, and the others do not wait for it without end."""

import os
import signal
import time
from dataclasses import dataclass

import psutil
import pytest
from tests.engines.elastic.training import MINIBATCH_SIZE, Training, counting_and, write_numbers

from elasticdl.engines.elastic.ray_watch import STOPPED_AFTER_S

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

# A sum would wait for 60 s.
SOON_S = 30.0
NUM_EPOCHS = 6
# Three of them before anything happens, and some for what happens.
NUM_DISTURBED_EPOCHS = 9

FREEZES = """
import os
import signal

forward = Counting.forward


def freeze(module, number):
    # Worker 1 in the middle of a step, once; the others are in the sum by then.
    flag = os.environ["FREEZE"]
    if module.counts.max() >= 2 and os.path.exists(flag):
        try:
            os.unlink(flag)
        except FileNotFoundError:
            return forward(module, number)
        with open(flag + ".pid", "w") as file:
            file.write(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    return forward(module, number)


Counting.forward = freeze
"""


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers") / "numbers.recordio")


def on_two_workers(numbers, *more):
    return [f"--data={numbers}", f"--minibatch_size={MINIBATCH_SIZE}", "--num_workers=2", *more]


def descendants(training, name):
    """Return the processes of a running training that are called so."""
    found = []
    for process in psutil.Process(training.pid).children(recursive=True):
        try:
            if name in " ".join([process.name(), *process.cmdline()[:1]]):
                found.append(process)
        except psutil.Error:
            continue
    return found


def last_step(training):
    return max((event["step"] for event in training.events("step_committed")), default=0)


@dataclass(frozen=True)
class Disturbed:
    """A training of which a worker was frozen for a while, and after that the Lighthouse killed.

    Attributes:
        training: It has come to its end.
        num_left: How many workers had left before the Lighthouse was killed.
    """

    training: Training
    num_left: int


@pytest.fixture(scope="module")
def disturbed(numbers, tmp_path_factory):
    folder = tmp_path_factory.mktemp("disturbed")
    flag, pid_file = folder / "freeze", folder / "freeze.pid"
    flag.touch()
    arguments = on_two_workers(
        numbers, f"--num_epochs={NUM_DISTURBED_EPOCHS}", "--params=pause_s=0.05"
    )
    model = counting_and(folder, FREEZES)

    with Training(
        folder / "out", arguments, model=model, environment={"FREEZE": str(flag)}
    ) as training:
        training.wait_for(lambda: pid_file.exists() and pid_file.read_text(), "a frozen worker")
        frozen, before = int(pid_file.read_text()), last_step(training)
        training.wait_for(lambda: last_step(training) > before + 5, "steps without it", SOON_S)
        assert psutil.Process(frozen).status() == psutil.STATUS_STOPPED
        os.kill(frozen, signal.SIGCONT)
        thawed = last_step(training)
        training.wait_for(lambda: last_step(training) > thawed + 20, "steps")
        num_left = len(training.events("worker_left"))
        (lighthouse,) = descendants(training, "LighthouseProcess")
        lighthouse.kill()
        training.wait_for(lambda: "The Lighthouse died" in training.log(), "another", SOON_S)
        training.wait_for_the_end()
    return Disturbed(training, num_left)


def test_a_frozen_worker_is_excluded_and_heals_later(disturbed):
    disturbed.training.assert_each_record_counts(NUM_DISTURBED_EPOCHS)


def test_a_lost_lighthouse_is_replaced_without_losing_steps(disturbed):
    training = disturbed.training

    assert "resuming from step" not in training.log()
    assert len(training.events("worker_left")) == disturbed.num_left


@pytest.mark.parametrize(
    ("name", "dies"),
    [
        pytest.param("raylet", "raylet", marks=pytest.mark.chaos),
        pytest.param("gcs_server", "gcs_server", marks=pytest.mark.chaos),
        # The raylet ends itself then, and first all that runs in it.
        ("DashboardAgent", "raylet"),
        pytest.param("RuntimeEnvAgent", "raylet", marks=pytest.mark.chaos),
    ],
)
def test_training_continues_in_another_ray(numbers, tmp_path, name, dies):
    arguments = on_two_workers(
        numbers, f"--num_epochs={NUM_EPOCHS}", "--params=pause_s=0.05", "--checkpoint_steps=20"
    )

    with Training(tmp_path / "out", arguments) as training:
        training.wait_for_workers(2)
        training.wait_for(lambda: training.events("checkpointed"), "a checkpoint")
        (process,) = descendants(training, name)
        process.kill()
        training.wait_for(lambda: "Starting Ray again" in training.log(), "its note", SOON_S)
        training.wait_for_the_end()

    assert f"Ray's process {dies} on this machine died" in training.log()
    training.assert_each_record_counts(NUM_EPOCHS)


@pytest.mark.chaos
@pytest.mark.parametrize("name", ["raylet", "gcs_server", "RuntimeEnvAgent"])
def test_training_continues_if_a_ray_process_stays_stopped(numbers, tmp_path, name):
    # It ends while the process is stopped, and also where it resumes in another Ray.
    arguments = on_two_workers(numbers, "--num_epochs=60", "--params=pause_s=0.02")

    with Training(tmp_path / "out", arguments) as training:
        training.wait_for_workers(2)
        training.wait_for(lambda: last_step(training) > 20, "steps")
        (process,) = descendants(training, name)
        process.suspend()
        training.wait_for(
            lambda: "Starting Ray again" in training.log(), "its note", STOPPED_AFTER_S + SOON_S
        )
        training.wait_for_the_end()

    assert "was stopped for 3" in training.log()
    training.assert_each_record_counts(60)


@pytest.mark.chaos
@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_a_job_ends_soon_despite_a_stopped_ray_process(numbers, tmp_path, name):
    arguments = on_two_workers(numbers, "--num_epochs=8", "--params=pause_s=0.02")

    with Training(tmp_path / "out", arguments) as training:
        training.wait_for_workers(2)
        training.wait_for(lambda: last_step(training) > 20, "steps")
        (process,) = descendants(training, name)
        process.suspend()
        began_s = time.monotonic()
        training.wait_for_the_end()

    assert time.monotonic() - began_s < STOPPED_AFTER_S + 2 * SOON_S
    training.assert_each_record_counts(8)


@pytest.mark.exhaustive
def test_a_model_slower_than_every_timeout_trains(numbers, tmp_path):
    slow = """
import time

forward = Counting.forward


def forward_slowly(module, number):
    time.sleep(1.0)
    return forward(module, number)


Counting.forward = forward_slowly
"""
    arguments = [
        f"--data={numbers}", "--minibatch_size=250", "--num_workers=2", "--num_epochs=1",
        "--batch_timeout=0.5", "--sum_timeout=0.5", "--join_timeout=10",
    ]  # fmt: skip

    with Training(tmp_path / "out", arguments, model=counting_and(tmp_path, slow)) as training:
        training.wait_for_the_end()

    training.assert_each_record_counts(1)
    assert not training.events("worker_left")


def test_an_endless_batch_is_given_up_after_the_timeout(numbers, tmp_path):
    flag = tmp_path / "hang"
    flag.touch()
    hangs = f"""
import os
import time

forward = Counting.forward


def hang(module, number):
    if module.counts.max() >= 1 and os.path.exists({str(flag)!r}):
        os.unlink({str(flag)!r})
        time.sleep(10000)
    return forward(module, number)


Counting.forward = hang
"""
    arguments = on_two_workers(numbers, "--num_epochs=3", "--batch_timeout=3")

    with Training(tmp_path / "out", arguments, model=counting_and(tmp_path, hangs)) as training:
        # On a busy machine the first batch is slow, and the limit is ten times that.
        training.wait_for(lambda: training.events("worker_left"), "the end of the hung one")
        training.wait_for_the_end()

    (reason,) = training.reasons()
    assert reason.startswith("hung: on the same batch for ")
    training.assert_each_record_counts(3)
