"""What a training tells people is in its log of events as well."""

from __future__ import annotations

import logging
import shutil

import pytest
from tests.cluster.test_progress import training

import elasticdl
from elasticdl.engines import job_messages
from elasticdl.engines.job_messages import MessageLog, RecordingReporter
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import OutputError
from elasticdl.event_file import EventLog, read_events
from elasticdl.events import JobFailed, JobFinished, JobStarted, Noted

LOGGER = logging.getLogger("elasticdl")


@pytest.fixture
def log(tmp_path):
    with EventLog(tmp_path / "events.jsonl") as log:
        yield log


def told(log):
    """Return the kinds of events in a log, and the texts of messages."""
    return [getattr(event, "message", event.event) for event in read_events(log.path)]


def test_messages_are_between_start_and_end_of_an_attempt(log):
    messages = MessageLog(log)
    reporter = RecordingReporter(Silent(), messages)

    with messages.attached():
        reporter.note("early")
        messages.write(JobStarted(job_id="a"))
        LOGGER.warning("a %s", "warning")
        messages.write(JobFinished(step=1))
        reporter.note("late")

    LOGGER.warning("of another job")
    assert told(log) == ["job_started", "early", "a warning", "job_finished"]


def test_messages_before_an_early_failure_are_kept(log):
    messages = MessageLog(log)

    messages.take("early")
    messages.write(JobFailed(kind="DataError", message="failed"))

    assert told(log) == ["early", "failed"]


def test_a_job_that_was_already_finished_gets_no_message(log):
    MessageLog(log).take("already complete")

    assert told(log) == []


def test_passwords_are_omitted_and_messages_truncated(log, monkeypatch):
    monkeypatch.setattr(job_messages, "_MAX_MESSAGES", 2)
    messages = MessageLog(log)
    messages.write(JobStarted(job_id="a"))

    messages.take("no answer from postgresql://me:secret@host/runs")
    messages.take("x" * 5000)
    messages.take("one more")
    messages.take("another one")

    _, first, second, third = told(log)
    assert first == "no answer from postgresql://me:***@host/runs"
    assert len(second) == 2000
    assert third == "Further messages of this attempt are not recorded."


def test_a_message_is_dropped_if_the_log_cannot_be_written(log, monkeypatch):
    messages = MessageLog(log)
    messages.write(JobStarted(job_id="a"))

    def full(event):
        raise OutputError("There is no room.")

    monkeypatch.setattr(log, "write", full)
    messages.take("a message")
    with pytest.raises(OutputError):
        messages.write(JobFinished(step=1))


def test_warnings_are_printed_as_before(log, run_python):
    printed = run_python(
        "import logging\n"
        "from elasticdl.engines.job_messages import MessageLog\n"
        "class Log:\n"
        "    path = None\n"
        "with MessageLog(Log()).attached():\n"
        "    logging.getLogger('elasticdl').warning('a warning')\n"
    ).stderr

    assert printed == "a warning\n"


@pytest.mark.parametrize(("failed", "expected"), [(False, 1), (True, 0)])
def test_a_run_killed_before_its_first_checkpoint_is_started_from_the_beginning(
    tmp_path, failed, expected
):
    class Listening(Silent):
        """Keeps the notes."""

        def note(self, message):
            notes.append(message)

    notes: list[str] = []
    options, output = training(tmp_path / "zoo"), tmp_path / "zoo/out"
    elasticdl.train(**options, reporter=Listening())
    assert not any("the run before" in note for note in notes)
    log, job = (output / "events.jsonl").read_text(), (output / "job.json").read_bytes()
    shutil.rmtree(output)
    output.mkdir()
    (output / "job.json").write_bytes(job)
    (output / ".generation").write_text("1")
    (output / "events.jsonl").write_text("".join(log.splitlines(keepends=True)[:-1]))
    if failed:
        with EventLog(output / "events.jsonl") as ended:
            ended.write(JobFailed(kind="UserCodeError", message="", step=3))

    elasticdl.train(**options, reporter=Listening())

    told = [note for note in notes if "the run before" in note]
    assert len(told) == expected
    assert all("first checkpoint. Set checkpoint_steps= to" in note for note in told)


def test_a_training_leaves_its_notes_and_warnings(tmp_path):
    class Telling(Silent):
        """Warns once, as code of ElasticDL does."""

        def started(self, title, total, unit, done=0):
            LOGGER.warning("a warning of a training")

    options = training(tmp_path / "zoo")
    elasticdl.train(**options, reporter=Telling())
    elasticdl.train(**{**options, "num_epochs": 3}, reporter=Telling())

    notes = [event for event in read_events(tmp_path / "zoo/out/events.jsonl")
             if isinstance(event, Noted)]  # fmt: skip
    assert [note.level for note in notes if note.message == "a warning of a training"] == [
        "warning",
        "warning",
    ]
    # The event of its start says that.
    assert not any(note.message.startswith("Resuming from step") for note in notes)


def test_fewer_epochs_than_were_trained_are_noted(tmp_path):
    class Notes(Silent):
        def __init__(self):
            self.notes = []

        def note(self, message):
            self.notes.append(message)

        @property
        def of_epochs(self):
            return [each for each in self.notes if "more epochs than" in each]

    def train(**more):
        reporter = Notes()
        outcome = elasticdl.train(**{**options, **more}, reporter=reporter)
        return outcome, reporter.of_epochs

    options = training(tmp_path / "zoo")
    first, none = train(num_epochs=3)
    again, still_none = train(num_epochs=3)
    fewer, (complete,) = train(num_epochs=2)
    assert (none, still_none) == ([], [])
    assert first.step == again.step == fewer.step
    assert complete.endswith("It has trained for more epochs than num_epochs=2.")
    # As a killed job: the newest checkpoint is in an epoch, and there is no trained model.
    options = training(tmp_path / "other")
    part, _ = train(num_epochs=3, max_steps=first.step * 5 // 6)
    (tmp_path / "other/out/trained_model.pb").unlink()
    ended, (note,) = train(num_epochs=2)

    assert ended.step == part.step
    assert note.endswith(f"nothing more is trained: the model is that of step {part.step}.")
