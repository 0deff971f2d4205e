"""What of a log counts: held against `event_file.parse_events`, which says it for the whole log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.page.conftest import (
    T0,
    as_log,
    elastic_events,
    evaluated,
    history_of,
    joined,
    left,
    saved,
    started,
    step,
)

from elasticdl.event_file import parse_events
from elasticdl.events import (
    Checkpointed,
    EpochFinished,
    Evaluated,
    RecordsSkipped,
    StepCommitted,
    UnknownEvent,
)
from elasticdl.page.history import JobHistory
from elasticdl.page.parse import parse


def counted_steps(history) -> list[int]:
    return history.steps["step"][history.steps["counts"]].tolist()


def test_steps_undone_by_a_later_attempt_do_not_count() -> None:
    history = history_of(
        [
            started(),
            step(1),
            step(2),
            saved(2),
            step(3),
            evaluated(3, 0.5),
            started(at=9, attempt=2, resumed_from_step=2),
            step(3, at=10),
            step(4, at=11),
        ]
    )

    assert counted_steps(history) == [1, 2, 3, 4]
    assert len(history.steps) == 5
    assert list(history.evaluations) == []
    assert list(history.checkpoints) == [2]
    assert history.step == 4


EVENTS = st.lists(
    st.one_of(
        st.builds(step, st.integers(1, 12)),
        st.builds(lambda n: evaluated(n, 0.1), st.integers(1, 12)),
        st.builds(saved, st.integers(1, 12)),
        st.builds(
            lambda n, e: EpochFinished(time=T0, epoch=e, step=n, metrics={"loss": 1.0}),
            st.integers(1, 12),
            st.integers(0, 2),
        ),
        st.builds(
            lambda n, b: RecordsSkipped(time=T0, step=n, epoch=0, shard=0, batch=b, records=(1,)),
            st.integers(0, 12),
            st.integers(0, 2),
        ),
        st.builds(
            lambda n, a: started(attempt=a, resumed_from_step=n),
            st.integers(0, 12),
            st.integers(1, 3),
        ),
    ),
    max_size=40,
)


@given(EVENTS, st.integers(1, 5))
def test_the_history_matches_the_log(events, pieces) -> None:
    data = as_log(events)
    history = JobHistory()
    lines = data.splitlines(keepends=True)
    for first in range(0, len(lines), pieces):
        history.add(parse(b"".join(lines[first : first + pieces])))

    defined = parse_events(data)

    def of(kind):
        return [event for event in defined if isinstance(event, kind)]

    assert counted_steps(history) == [event.step for event in of(StepCommitted)]
    assert list(history.evaluations.values()) == of(Evaluated)
    assert list(history.checkpoints.values()) == of(Checkpointed)
    assert list(history.epochs.values()) == of(EpochFinished)
    assert history.skipped == of(RecordsSkipped)


def test_workers_join_and_leave_by_wall_clock_time() -> None:
    history = history_of(elastic_events())

    lost = [tenure for tenure in history.tenures if tenure.is_lost]
    assert [(tenure.rank, tenure.incarnation, tenure.reason) for tenure in lost] == [(1, 2, "died")]
    assert lost[0].left == T0 + 11.4
    assert [tenure.first_batch - T0 for tenure in history.tenures] == [2.0, 2.0, 18.0]
    assert [tenure.rank for tenure in history.present] == [0, 1]


def test_a_death_during_repeated_steps_is_kept() -> None:
    history = history_of(
        [
            started(),
            joined(0, 1, 1),
            step(5),
            left(0, 1, 6, number=5),
            started(at=9, resumed_from_step=0),
            joined(0, 2, 10),
            step(1, at=11),
        ]
    )

    assert counted_steps(history) == [1]
    assert [tenure.reason for tenure in history.tenures if tenure.is_lost] == ["died"]


def test_a_job_without_workers_is_one_lane() -> None:
    history = history_of([started(pid=7), step(1), started(at=5, attempt=2, pid=8), step(1, at=6)])

    assert [(tenure.rank, tenure.pid) for tenure in history.tenures] == [(0, 7), (0, 8)]


def test_an_event_of_a_newer_version_is_counted_and_shown() -> None:
    event = UnknownEvent(time=T0, values={"event": "worker_dreamt", "time": T0, "rank": 1})

    history = history_of([started(), event, step(1)])

    assert history.num_unknown == 1
    assert history.step == 1
