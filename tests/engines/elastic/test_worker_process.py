"""A worker in a process of its own: what it returns and raises, that it dies, and another one."""

import os
import signal
import tempfile
import threading
import time
import uuid
from dataclasses import replace

import psutil
import pytest
from tests.engines.elastic.training import COUNTING, MINIBATCH_SIZE, counting_and, write_numbers

from elasticdl.engines.elastic.timeouts import Timeouts
from elasticdl.engines.elastic.worker import Assignment, Identity, WorkerFailure
from elasticdl.engines.elastic.worker_process import Died, WorkerProcess
from elasticdl.engines.training_context import open_context
from elasticdl.job import Job, ModelReference, TrainingOptions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PACE = Timeouts(heartbeat_s=0.1, heartbeat_timeout_s=1.0, join_timeout_s=0.5)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers") / "numbers.recordio")


@pytest.fixture(scope="module")
def name():
    """All of them fork from one server, as those of a run do."""
    return uuid.uuid4().hex[:12]


@pytest.fixture
def place(numbers, name):
    """Return a worker's process that is not started yet, of a model file."""

    def place(model=COUNTING, timeouts=PACE):
        job = Job(
            command="train",
            model=ModelReference(zoo=str(model.parent), model_def=model.stem),
            data=str(numbers),
            output="nowhere",
            training=TrainingOptions(minibatch_size=MINIBATCH_SIZE),
        )
        context, metadata = open_context(job)
        assignment = Assignment(
            job=job,
            plan=context.plan,
            metadata=metadata,
            code={model.name: model.read_bytes()},
            num_ranks=2,
            num_threads=1,
            framework="torch",
            timeouts=timeouts,
            key=bytes(32),
        )
        return WorkerProcess(assignment, name)

    return place


def test_a_worker_reports_its_place_and_answers_while_working(place):
    worker = place()
    assert worker.call("report", None, with_events=False) is None

    identity = worker.prepare()

    assert isinstance(identity, Identity)
    assert identity.pid != os.getpid()
    assert psutil.pid_exists(identity.pid)
    assert worker.call("report", None, with_events=False) is None


def test_user_errors_are_reported_with_the_users_file(place, tmp_path):
    model = counting_and(tmp_path, "def optimizer(parameters):\n    raise ValueError('no idea')\n")

    failure = place(model).prepare()

    assert isinstance(failure, WorkerFailure)
    assert failure.kind == "UserCodeError"
    assert str(model) in failure.message
    assert "no idea" in failure.message


def test_internal_errors_are_reported_with_a_traceback(place):
    worker = place()
    worker.prepare()

    failure = worker.call("final")

    assert isinstance(failure, WorkerFailure)
    assert "AssertionError" in failure.message
    assert "worker.py" in failure.message


def test_a_dead_worker_is_restarted_in_the_same_place(place):
    worker = place()
    first = worker.prepare()

    os.kill(first.pid, signal.SIGKILL)

    assert worker.call("report", None, with_events=False) == Died((), "killed by SIGKILL")
    # Asked for the one to come, not of the dead one.
    assert worker.call("report", None, with_events=False) is None
    second = worker.prepare()
    assert isinstance(second, Identity)
    assert second.pid != first.pid


WAITS = """
import os
import time
from pathlib import Path

if Path({told!r}).exists():
    # Not in the driver, which reads this file as well.
    Path({told!r}).write_text(str(os.getpid()))
    time.sleep(60)
"""


def test_a_death_during_preparation_is_reported(place, tmp_path):
    told = tmp_path / "pid"
    worker = place(counting_and(tmp_path, WAITS.format(told=str(told))))
    told.touch()
    answers = []
    thread = threading.Thread(target=lambda: answers.append(worker.prepare()))
    thread.start()
    while not told.read_text():
        time.sleep(0.05)

    os.kill(int(told.read_text()), signal.SIGKILL)
    thread.join()

    assert answers == [Died((), "killed by SIGKILL")]


def test_a_temporary_folder_with_a_path_too_long_for_sockets_is_named(place, tmp_path, monkeypatch):
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))

    failure = place().prepare()

    assert isinstance(failure, WorkerFailure)
    assert str(folder) in failure.message
    assert "Set TMPDIR" in failure.message


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ("sys.exit(0)", "SystemExit(0)"),
        ("raise type('Odd', (BaseException,), {})('well')", "Odd(well)"),
        (
            "raise type('Mute', (BaseException,), {'__str__': lambda self: sys.exit(3)})()",
            "Mute((its __str__ raises, so its message is unknown))",
        ),
    ],
)
def test_user_code_that_exits_is_reported_with_its_line(place, tmp_path, ends, said):
    model = counting_and(tmp_path, f"import sys\n\n\ndef input_fn(records):\n    {ends}\n")
    line = len(model.read_text().splitlines())

    failure = place(model).prepare()

    assert isinstance(failure, WorkerFailure)
    assert failure.kind == "UserCodeError"
    assert failure.message.startswith(f"{model}:{line}: this code ended the command with {said}.")


def test_an_input_function_that_hangs_is_named_during_preparation(place, tmp_path):
    hangs = "def wait():\n    time.sleep(60)\n\n\ndef input_fn(records):\n    wait()\n"
    model = counting_and(tmp_path, hangs)
    line = len(model.read_text().splitlines()) - 4
    worker = place(model, replace(PACE, batch_timeout_s=0.5))
    threading.Thread(target=worker.prepare, daemon=True).start()

    deadline_s = time.monotonic() + 60
    failure = None
    while not isinstance(failure, WorkerFailure) and time.monotonic() < deadline_s:
        time.sleep(0.1)
        failure = worker.call("report", None, with_events=False)

    assert isinstance(failure, WorkerFailure)
    assert failure.kind == "UserCodeError"
    said = f"{model}:{line}: input_fn() has been running for 1 s on "
    assert failure.message.startswith(said)
    assert "records 0 to 1; expected a batch within 0.5 s" in failure.message
    assert "--batch_timeout" in failure.message
