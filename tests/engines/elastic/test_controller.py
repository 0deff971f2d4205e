"""The user's code raises, a worker falls silent; `tests/chaos/` kills workers and the driver."""

import os
import re
import signal

import pytest
from tests.engines.elastic.training import MINIBATCH_SIZE, Training, counting_and, write_numbers
from tests.engines.test_messages import TORCH, write_labels

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers") / "numbers.recordio")


def arguments(numbers, *more):
    return [f"--data={numbers}", f"--minibatch_size={MINIBATCH_SIZE}", "--num_workers=2", *more]


RAISES = """
careful = input_fn


def input_fn(records):
    if any(record["number"][0] == 700 for record in records):
        raise ZeroDivisionError("record 700 is odd")
    return careful(records)
"""


def test_an_error_in_the_users_function_ends_the_job_immediately(numbers, tmp_path):
    model = counting_and(tmp_path, RAISES)

    with Training(tmp_path / "out", arguments(numbers, "--num_epochs=2"), model=model) as training:
        training.wait_for_the_end(expected=3)

    told = training.log()
    assert "ZeroDivisionError: record 700 is odd" in told
    # Their file, though a worker has a copy of it.
    line = (
        model.read_text().splitlines().index('        raise ZeroDivisionError("record 700 is odd")')
    )
    assert f"{model}:{line + 1}: the input function raised on {numbers}" in told
    # Those of its batch, which are shuffled, as many as a line holds.
    assert re.search(rf"{re.escape(str(numbers))}, records [\d, ]+ and \d+ more", told)


RAISES_AT_THE_END = """
from pathlib import Path


class Simplify:
    def on_train_end(self):
        if not Path({mended!r}).exists():
            raise ZeroDivisionError("nothing to simplify")


def callbacks():
    return [Simplify()]
"""


def test_an_error_after_the_last_step_loses_nothing_that_was_trained(tmp_path):
    model = tmp_path / "zoo" / "m.py"
    model.parent.mkdir()
    mended = tmp_path / "mended"
    model.write_text(TORCH + RAISES_AT_THE_END.format(mended=str(mended)))
    data = write_labels(tmp_path / "d.recordio", [*range(5)] * 8)
    run = [f"--data={data}", "--minibatch_size=4", "--num_workers=2"]

    with Training(tmp_path / "out", run, model=model) as training:
        training.wait_for_the_end(expected=3)
        assert "ZeroDivisionError: nothing to simplify" in training.log()
        trained = training.events("step_committed")
        assert training.events("checkpointed")[-1]["step"] == trained[-1]["step"]

        mended.touch()
        training.start()
        training.wait_for_the_end()

    assert training.events("step_committed") == trained
    assert (tmp_path / "out" / "model.pt2").exists()


def test_a_checkpoint_of_another_model_is_refused_before_it_is_said_to_be_resumed(tmp_path):
    model = tmp_path / "zoo" / "m.py"
    model.parent.mkdir()
    model.write_text(TORCH)
    data = write_labels(tmp_path / "d.recordio", [*range(5)] * 8)
    run = [f"--data={data}", "--minibatch_size=4", "--num_workers=2"]

    with Training(tmp_path / "out", run, model=model) as training:
        training.wait_for_the_end()
    model.write_text(TORCH.replace("5)", "6)"))
    with Training(tmp_path / "out", [*run, "--num_epochs=2"], model=model) as training:
        training.wait_for_the_end(expected=6)
        assert "The checkpoint does not match this model" in training.log()
        assert "Resuming from step" not in training.log()

        model.write_text(TORCH)
        training.start()
        training.wait_for_the_end()
        assert "Resuming from step" in training.log()


@pytest.mark.exhaustive  # In one process in `test_messages.py`; another error on workers, above.
def test_a_label_without_an_output_ends_the_job_and_names_its_records(tmp_path):
    model = tmp_path / "zoo" / "m.py"
    model.parent.mkdir()
    model.write_text(TORCH)
    data = write_labels(tmp_path / "d.recordio", [*range(5), 7, *range(5), 0])
    run = [f"--data={data}", "--minibatch_size=4", "--num_workers=2"]

    with Training(tmp_path / "out", run, model=model) as training:
        training.wait_for_the_end(expected=4)

    told = training.log()
    expected = "the data have label 7, but the model has 5 outputs, for labels 0 to 4. Found in"
    assert f"{model}:13: {expected} {data}" in told


def test_a_silent_worker_with_the_only_copy_of_events_is_not_awaited(numbers, tmp_path):
    slowly = arguments(numbers, "--num_workers=1..2", "--num_epochs=4", "--params=pause_s=0.05")

    with Training(tmp_path / "out", slowly) as training:
        training.wait_for_workers(2)
        training.wait_for(lambda: training.events("step_committed"), "steps")
        silent, dead = training.workers().values()
        os.kill(silent, signal.SIGSTOP)
        os.kill(dead, signal.SIGKILL)
        why = "with the last logged steps were lost"
        training.wait_for(lambda: why in training.log(), "a new round")
        training.wait_for_the_end()

    training.assert_each_record_counts(4)


STANDS_STILL_IN_WORKERS = """
import os
import time
from pathlib import Path

of_the_command = Path(__file__).with_name("command.pid")
if not of_the_command.exists():
    of_the_command.write_text(str(os.getpid()))
elif of_the_command.read_text() != str(os.getpid()):
    time.sleep(600)
"""


def test_a_job_gives_up_once_after_the_set_waiting_time(numbers, tmp_path):
    model = counting_and(tmp_path, STANDS_STILL_IN_WORKERS)

    with Training(
        tmp_path / "out", arguments(numbers, "--give_up_after=5"), model=model
    ) as training:
        training.wait_for_the_end(expected=75)

    told = training.log()
    assert "The newest checkpoint was written at step 0" in told
    assert "Starting Ray again" not in told


TELLS_ITS_PRIORITY = """
import os
import threading
from pathlib import Path

from elasticdl.engines.elastic.committer import ElasticCommitter

prepare = ElasticCommitter.__init__


def prepare_and_tell(*args, **named):
    prepare(*args, **named)
    priority = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    Path({folder!r}, str(os.getpid())).write_text(str(priority))


ElasticCommitter.__init__ = prepare_and_tell
"""


def test_a_spare_started_during_training_has_a_lower_priority(numbers, tmp_path):
    folder = tmp_path / "priorities"
    folder.mkdir()
    model = counting_and(tmp_path, TELLS_ITS_PRIORITY.format(folder=str(folder)))
    endlessly = arguments(numbers, "--num_epochs=1000", "--num_spare_workers=1")

    def priorities():
        """Return process -> priority, of those that are prepared."""
        return {int(f.name): int(text) for f in folder.iterdir() if (text := f.read_text())}

    with Training(tmp_path / "out", endlessly, model=model) as training:
        training.wait_for_workers(2)
        training.wait_for(lambda: len(priorities()) >= 3, "a spare worker")
        first = priorities()
        os.kill(training.workers()[0], signal.SIGKILL)
        training.wait_for(lambda: len(priorities()) > len(first), "another spare worker")
        last = priorities()

    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert set(first.values()) == {usual}
    assert [last[pid] for pid in last if pid not in first] == [usual + 10]


TELLS_ITS_CHECKS = """
import os
from pathlib import Path

from elasticdl.training.repeated_checks import RepeatedChecks
from elasticdl.training.torch.part_checks import PartCheck

checked = PartCheck.check


def check_and_tell(self, batch, update_size):
    checked(self, batch, update_size)
    with Path({folder!r}, str(os.getpid())).open("a") as file:
        file.write(".")


PartCheck.check = check_and_tell
RepeatedChecks.is_due = lambda *_, **__: False
"""


def test_a_replacement_does_not_repeat_the_checks_of_the_others(numbers, tmp_path):
    """All others would wait for it."""
    folder = tmp_path / "checks"
    folder.mkdir()
    model = counting_and(tmp_path, TELLS_ITS_CHECKS.format(folder=str(folder)))
    endlessly = arguments(numbers, "--num_epochs=1000", "--num_spare_workers=1")

    def has_trained(step):
        return [e for e in training.events("step_committed") if e["step"] > step]

    with Training(tmp_path / "out", endlessly, model=model) as training:
        training.wait_for_workers(2)
        training.wait_for(lambda: len(list(folder.iterdir())) >= 3, "a spare worker")
        training.wait_for(lambda: has_trained(10), "some steps")
        first = training.workers()
        os.kill(first[0], signal.SIGKILL)
        training.wait_for(
            lambda: training.workers().get(0) not in (None, first[0]), "the replacement"
        )
        step = training.events("step_committed")[-1]["step"]
        training.wait_for(lambda: has_trained(step + 20), "more steps")
        counts = {int(file.name): len(file.read_text()) for file in folder.iterdir()}
        replacement = training.workers()[0]

    # One on the example in preparation, and of the first workers on their first batches.
    assert counts[replacement] == 1
    assert counts[first[1]] > 1
