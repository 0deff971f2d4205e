"""The log of a run: whole lines whatever happens, and one history whatever was tried."""

from __future__ import annotations

import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from elasticdl.errors import CorruptDataError, DataError, OutputError
from elasticdl.event_file import EventLog, parse_events, read_events
from elasticdl.events import (
    Checkpointed,
    EpochFinished,
    Evaluated,
    JobFailed,
    JobFinished,
    JobStarted,
    PartyJoined,
    RecordsSkipped,
    RoundFinished,
    StepCommitted,
    UnknownEvent,
    to_json,
)


def started(step: int = 0, attempt: int = 1) -> JobStarted:
    return JobStarted(job_id="j", attempt=attempt, resumed_from_step=step)


def steps(step: int) -> StepCommitted:
    return StepCommitted(step=step, epoch=0, num_records=1, loss=0.5)


def log_of(*events) -> bytes:
    return "".join(to_json(event) + "\n" for event in events).encode()


# --- Lines ------------------------------------------------------------------------------------

ONE_OF_EACH = [
    JobStarted(
        job_id="j",
        attempt=2,
        resumed_from_step=0,
        num_records=5,
        trust_used=("a",),
        versions={"keras": "3.15"},
        num_shards=2,
    ),
    StepCommitted(
        step=3, epoch=0, num_records=9, loss=0.25, records_per_s=2.0, rows=((0, 0, 4, 1, 3),)
    ),
    EpochFinished(epoch=0, step=3, metrics={"accuracy": 0.5, "recall": [0.0, 1.0]}),
    Evaluated(step=3, epoch=0, metrics={"loss": 0.25}),
    Checkpointed(step=3, blocked_s=0.125, num_bytes=8, best=True),
    PartyJoined(step=0, party="north", num_examples=7),
    RoundFinished(
        step=1,
        parties=("north",),
        left_out={"south": "NaN"},
        metrics={"loss": 0.5},
        party_metrics={"north": {"loss": 0.5, "recall": [0.0, 1.0]}},
    ),
    RecordsSkipped(step=3, epoch=0, shard=1, batch=2, records=(7, 9)),
    JobFailed(kind="DataError", message="ä\nb", step=3),
    JobFinished(step=3, metrics={"loss": 0.25}),
]


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: event.event)
def test_an_event_survives_a_round_trip(event) -> None:
    assert parse_events(log_of(event)) == [event]


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: event.event)
def test_an_event_is_one_line_with_type_and_time(event) -> None:
    line = to_json(event)
    values = json.loads(line)

    assert "\n" not in line
    assert (values["event"], values["time"]) == (event.event, event.time)


def test_an_event_has_the_current_time() -> None:
    assert abs(JobFinished(step=1).time - time.time()) < 5


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_values_without_a_json_form_survive_a_round_trip(value) -> None:
    line = to_json(Evaluated(step=1, epoch=0, metrics={"loss": value, "list": [value]}))
    json.loads(line, parse_constant=lambda _: pytest.fail("this is no JSON"))

    [event] = parse_events(line.encode() + b"\n")
    np.testing.assert_array_equal(event.metrics["loss"], value)
    np.testing.assert_array_equal(event.metrics["list"], [value])


def test_a_loss_that_is_not_finite_survives_a_round_trip() -> None:
    [event] = parse_events(log_of(StepCommitted(step=1, epoch=0, num_records=1, loss=math.nan)))

    assert math.isnan(event.loss)


def test_numpy_values_are_written_as_numbers() -> None:
    metrics = {"loss": np.float32(0.5), "recall": np.array([0.25, 1])}

    [event] = parse_events(log_of(JobFinished(step=int(np.int64(1)), metrics=metrics)))

    assert event.metrics == {"loss": 0.5, "recall": [0.25, 1.0]}


# --- Newer and older writers ------------------------------------------------------------------


def test_an_event_of_a_newer_version_is_kept_raw() -> None:
    line = {"event": "moved", "time": 1.5, "step": 4, "to": "host"}

    [event] = parse_events(json.dumps(line).encode() + b"\n")

    assert event == UnknownEvent(time=1.5, values=line)
    assert (event.event, event.step) == ("moved", 4)
    assert json.loads(to_json(event)) == line


def test_a_field_of_a_newer_version_is_ignored() -> None:
    line = {**json.loads(to_json(steps(4))), "colour": "red"}

    [event] = parse_events(json.dumps(line).encode() + b"\n")

    assert (type(event), event.step) == (StepCommitted, 4)


@pytest.mark.parametrize("change", [{"loss": "high"}, {"rows": 3}, {"epoch": None}])
def test_an_event_with_fields_of_other_types_is_kept_raw(change) -> None:
    values = {**json.loads(to_json(steps(4))), **change}
    values = {name: value for name, value in values.items() if value is not None}

    [event] = parse_events(json.dumps(values).encode() + b"\n")

    assert isinstance(event, UnknownEvent)


# --- The history as it stands -----------------------------------------------------------------


def test_events_after_the_resumed_step_are_omitted() -> None:
    first = [started(), steps(100), Checkpointed(step=100, blocked_s=0, num_bytes=1)]
    given_up = [
        steps(140),
        Evaluated(step=140, epoch=0, metrics={}),
        JobFailed(kind="E", message="", step=140),
    ]
    second = [started(100, attempt=2), steps(120)]

    assert parse_events(log_of(*first, *given_up, *second)) == [*first, *second]


def test_an_attempt_without_a_checkpoint_is_omitted() -> None:
    kept = [started(), steps(50)]
    given_up = [steps(100), started(100, 2), steps(150)]
    last = [started(50, 3), steps(70)]

    assert parse_events(log_of(*kept, *given_up, *last)) == [*kept, *last]


def test_starting_over_omits_earlier_events() -> None:
    last = [started(0, 2), steps(20)]

    assert parse_events(log_of(steps(10), *last)) == last


def test_each_epoch_is_listed_once_with_its_last_event() -> None:
    def epoch(loss: float) -> EpochFinished:
        return EpochFinished(epoch=0, step=100, metrics={"loss": loss})

    events = [started(), epoch(1.0), started(100, 2), epoch(2.0)]

    assert parse_events(log_of(*events)) == [events[0], events[2], events[3]]


def test_evaluation_and_checkpoint_of_a_step_are_listed_once() -> None:
    evaluated = Evaluated(step=10, epoch=0, metrics={})
    checkpointed = Checkpointed(step=10, blocked_s=0, num_bytes=1)

    found = parse_events(log_of(evaluated, checkpointed, evaluated, checkpointed))

    assert found == [evaluated, checkpointed]


def test_unknown_events_after_the_resumed_step_are_omitted() -> None:
    line = b'{"event": "moved", "time": 1, "step": 101}\n'
    resumed = started(100)

    assert parse_events(line + log_of(resumed)) == [resumed]


def test_skipped_records_belong_to_the_next_step_and_are_listed_once() -> None:
    left_out = RecordsSkipped(step=100, epoch=0, shard=1, batch=2, records=(7, 9))
    again = [started(101, 2), replace(left_out, step=101)]

    # The checkpoint of step 100 may be of before it; if not, it is told again.
    resumed = started(100, 2)
    assert parse_events(log_of(left_out, resumed)) == [resumed]
    assert parse_events(log_of(left_out, *again)) == again


# --- The file ---------------------------------------------------------------------------------


def test_reopening_a_log_appends_to_it(tmp_path) -> None:
    path = tmp_path / "new" / "events.jsonl"
    for step in (1, 2):
        with EventLog(path) as log:
            log.write(steps(step))

    assert [event.step for event in read_events(path)] == [1, 2]


def test_an_event_is_written_immediately(tmp_path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        log.write(steps(1))

        assert [event.step for event in read_events(tmp_path / "events.jsonl")] == [1]


@pytest.mark.parametrize(
    "torn",
    [
        b'{"event": "jo',
        b'{"event": "job_finished", "time": 1.0, "step": 1}',
        b"\0" * 70_000,
        b"x\n",
    ],
    ids=["torn", "without its end", "zeros after a power cut", "no JSON"],
)
def test_a_torn_end_is_removed_when_the_log_is_reopened(tmp_path, torn) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(log_of(steps(1)) + torn)

    with EventLog(path) as log:
        log.write(steps(2))

    assert [event.step for event in read_events(path)] == [1, 2]


def test_a_complete_log_is_not_truncated(tmp_path) -> None:
    path = tmp_path / "events.jsonl"
    long = JobFailed(kind="E", message="x" * 200_000)
    whole = log_of(*[steps(step) for step in range(2000)], long)
    path.write_bytes(whole)

    EventLog(path).close()

    assert path.read_bytes() == whole


def test_a_log_with_only_a_torn_line_starts_empty(tmp_path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"{" * 200_000)

    EventLog(path).close()

    assert path.read_bytes() == b""


def test_a_line_that_is_being_written_is_not_read() -> None:
    whole = steps(1)

    assert parse_events(log_of(whole) + b'{"event": "jo') == [whole]


def test_a_damaged_line_is_named_with_its_place() -> None:
    first = log_of(steps(1))

    with pytest.raises(CorruptDataError) as caught:
        parse_events(first + b"{\n" + first, "here")

    assert (caught.value.file, caught.value.offset_bytes) == ("here", len(first))


@pytest.mark.parametrize("line", [b"[]", b"3", b'{"event": "x"}', b'{"time": 1}', b"\xff", b""])
def test_a_line_that_is_not_an_event_is_named(line) -> None:
    with pytest.raises(CorruptDataError):
        parse_events(line + b"\n")


def test_a_missing_log_is_named(tmp_path) -> None:
    with pytest.raises(DataError, match=r"gone\.jsonl: the event log cannot be read"):
        read_events(tmp_path / "gone.jsonl")


def test_a_log_on_a_store_is_read(tmp_path) -> None:
    import fsspec

    with fsspec.open("memory://events/events.jsonl", "wb") as file:
        file.write(log_of(steps(1)))

    assert [event.step for event in read_events("memory://events/events.jsonl")] == [1]


def test_a_log_that_cannot_be_opened_is_an_output_error(tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(OutputError, match=r"--output"):
        EventLog(tmp_path / "file" / "events.jsonl")


def test_a_full_disk_leaves_complete_lines(tmp_path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.write(steps(1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, before[1]))
    try:
        with pytest.raises(OutputError, match="cannot be written"):
            log.write(steps(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    log.write(steps(3))
    log.close()

    assert [event.step for event in read_events(path)] == [1, 3]


def test_publishing_copies_the_whole_log(tmp_path) -> None:
    copies = []
    log = EventLog(tmp_path / "events.jsonl", lambda path: copies.append(path.read_bytes()))
    log.write(steps(1))
    log.publish()
    log.write(steps(2))
    log.close()

    assert [len(parse_events(copy)) for copy in copies] == [1, 2]


def test_lines_of_several_threads_are_not_mixed(tmp_path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        threads = [
            threading.Thread(target=lambda: [log.write(steps(step)) for step in range(50)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(read_events(path)) == 200


def test_a_log_can_be_continued_after_a_killed_writer(tmp_path) -> None:
    path = tmp_path / "events.jsonl"
    code = (
        "import sys\n"
        "from elasticdl.event_file import EventLog\n"
        "from elasticdl.events import StepCommitted\n"
        "log, step = EventLog(sys.argv[1]), int(sys.argv[2])\n"
        "while True:\n"
        "    step += 1\n"
        "    log.write(StepCommitted(step=step, epoch=0, num_records=1, loss=0.5,\n"
        "                            rows=[(0, 0, step, 0, 1)] * 500))\n"
        "    print(step, flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    chance = random.Random(5)
    reached = 0
    for _ in range(6):
        command = [sys.executable, "-c", code, str(path), str(reached)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        writer.stdout.readline()
        time.sleep(chance.uniform(0, 0.02))
        writer.send_signal(signal.SIGKILL)
        told = writer.communicate()[0].split()
        EventLog(path).close()
        steps_in_log = [event.step for event in read_events(path)]
        assert steps_in_log == list(range(1, len(steps_in_log) + 1))
        assert len(steps_in_log) >= int(told[-1] if told else 1)
        reached = len(steps_in_log)
