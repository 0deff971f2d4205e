"""The log of a run follows its output, wherever that is."""

from __future__ import annotations

from contextlib import suppress

from elasticdl.artifacts.event_log import EVENTS_FILE, open_event_log
from elasticdl.event_file import parse_events
from elasticdl.events import JobFinished


def steps_in(folder) -> list[int]:
    return [event.step for event in parse_events(folder.read_bytes(EVENTS_FILE))]


def test_reopening_a_log_appends_to_it(folder) -> None:
    for step in (1, 2):
        with open_event_log(folder) as log:
            log.write(JobFinished(step=step))

    assert steps_in(folder) == [1, 2]


def test_published_events_are_readable_during_the_run(folder) -> None:
    with open_event_log(folder) as log:
        log.write(JobFinished(step=1))
        log.publish()

        assert steps_in(folder) == [1]


def test_the_log_of_a_failed_run_is_published(folder) -> None:
    with suppress(KeyError), open_event_log(folder) as log:
        log.write(JobFinished(step=1))
        raise KeyError

    assert steps_in(folder) == [1]
