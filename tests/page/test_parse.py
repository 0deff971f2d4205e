"""Parsing together says what parsing one by one says, and passes over damage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.page.conftest import T0, as_log, evaluated, joined, left, saved, started, step

from elasticdl.events import Evaluated, JobStarted, WorkerJoined
from elasticdl.page.history import JobHistory
from elasticdl.page.parse import Damage, StepColumns, parse


def steps_of(data: bytes) -> list[tuple[int, float, int]]:
    return [
        (int(item.step[at]), float(item.loss[at]), int(item.row_ends[at]))
        for item in parse(data)
        if isinstance(item, StepColumns)
        for at in range(len(item))
    ]


def test_many_steps_are_parsed_as_columns_with_their_rows() -> None:
    events = [
        step(n, loss=n / 2, rows=[(0, 0, 0, n, n + 1), (0, 1, 1, n, n + 1)]) for n in range(50)
    ]

    (steps,) = parse(as_log(events))

    assert steps.step.tolist() == list(range(50))
    assert steps.loss.tolist() == [n / 2 for n in range(50)]
    assert steps.row_ends.tolist() == list(range(2, 102, 2))
    assert steps.rows[-1].tolist() == [0, 1, 1, 49, 50]


def test_events_that_steps_depend_on_keep_their_positions() -> None:
    steps = [step(n) for n in range(30)]
    events = [started(), *steps, evaluated(29, 0.5), step(30), joined(0, 1, 31), step(32)]

    items = list(parse(as_log(events)))

    kinds = [type(item) for item in items]
    assert kinds == [JobStarted, Evaluated, StepColumns, WorkerJoined, StepColumns]
    assert items[2].step.tolist() == list(range(31))


@given(st.lists(st.sampled_from(["step", "nan", "event"]), max_size=60))
def test_columns_match_single_lines(kinds) -> None:
    made = {
        "step": lambda n: step(n, loss=n / 3, rows=[(0, 0, 0, n, n + 1)] * (n % 3)),
        "nan": lambda n: step(n, loss=float("nan"), rows=[(0, 1, 2, n, n + 1)]),
        "event": lambda n: joined(n, n, n),
    }
    events = [made[kind](n) for n, kind in enumerate(kinds)]

    together = list(parse(as_log(events)))
    alone = [item for event in events for item in parse(as_log([event]))]

    def flat(items):
        for item in items:
            if isinstance(item, StepColumns):
                for at in range(len(item)):
                    part = item.part(at, at + 1)
                    yield (
                        part.step.tolist(),
                        np.nan_to_num(part.loss, nan=-1.0).tolist(),
                        (part.rows.tolist()),
                    )
            else:
                yield item

    assert list(flat(together)) == list(flat(alone))


def test_a_loss_that_is_not_finite_is_kept() -> None:
    events = [step(n, loss=float("inf") if n == 25 else 1.0) for n in range(40)]

    assert steps_of(as_log(events))[25][1] == float("inf")


def test_a_damaged_line_is_reported_and_loses_no_other() -> None:
    data = as_log([step(1)]) + b"{torn\n" + as_log([step(2)])

    items = list(parse(data, offset=1000))

    assert [type(item) for item in items] == [StepColumns, Damage, StepColumns]
    assert items[1] == Damage(1000 + len(as_log([step(1)])), "{torn")


def test_an_invalid_line_among_many_steps_is_skipped() -> None:
    events = [step(n) for n in range(40)]
    odd = b'{"event": "step_committed", "time": 1.0, "step": "x", "epoch": 0, "loss": 1}'

    items = list(parse(as_log(events) + odd + b"\n"))

    assert sum(len(item) for item in items if isinstance(item, StepColumns)) == 40
    assert not isinstance(items[-1], StepColumns) or len(items[-1]) == 40


def test_fields_missing_in_old_logs_have_their_default() -> None:
    old = as_log([step(3)]).split(b', "records_per_s"')[0] + b"}\n"

    (steps,) = parse(old * 30)

    assert steps.longest_s.tolist() == [0.0] * 30
    assert len(steps.rows) == 0


def test_bytes_that_are_not_text_are_damage() -> None:
    assert isinstance(next(iter(parse(b"\xff\xfe\x00\n"))), Damage)


def test_fields_of_wrong_types_and_impossible_times_are_damage() -> None:
    lines = [
        '{"event": "checkpointed", "time": 1, "step": "<b>", "blocked_s": 0, "num_bytes": 1}',
        '{"event": "worker_joined", "time": 1e308, "step": 1, "rank": 0}',
        '{"event": "step_committed", "time": 1e308, "step": 1, "epoch": 0, "num_records": 1}',
    ]

    for line in lines:
        assert [type(item) for item in parse(line.encode() + b"\n")] == [Damage]


ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 5), st.just(1), st.just(4)),
    max_size=4,
)
NUMBERS = st.integers(1, 30)
EVENTS = st.one_of(
    st.builds(step, NUMBERS, rows=ROWS, loss=st.sampled_from([0.5, 3.0, float("nan")])),
    st.builds(step, NUMBERS, rows=ROWS, epoch=st.integers(0, 2)),
    st.builds(evaluated, NUMBERS, st.sampled_from([0.5, float("inf")])),
    st.builds(saved, NUMBERS),
    st.builds(joined, st.integers(0, 3), NUMBERS, NUMBERS),
    st.builds(left, st.integers(0, 3), NUMBERS, NUMBERS),
    st.builds(lambda n: started(at=n, resumed_from_step=n - 1), NUMBERS),
)
CHANGES = st.sampled_from(
    [
        (b"[[", b"[[[1],"),
        (b"[[", b"[[],["),
        (b": 1", b": -1"),
        (b": 1", b": 1e3"),
        (b": 1", b": []"),
        (b": 0", b": 99999999999999999999"),
        (b": 1", b": 3000000000"),
        (b", 1", b", 3000000000"),
        (b", 1", b", null"),
        (b'"loss"', b'"los"'),
        (b'"time": 1', b'"time": 9e30'),
        (b'"event"', b'"even"'),
        (b'"rows": [', b'"rows" :  [ '),
        (b"}", b""),
        (b"}", b"}}"),
        (b"{", b"\xff{"),
        (b"", b""),
    ]
)
LINES = st.lists(
    st.one_of(
        st.tuples(EVENTS, st.none()),
        st.tuples(EVENTS, CHANGES),
        st.tuples(st.none(), st.sampled_from([b"", b"[1]", b"null", b"{}", b"\x00", b"[" * 2000])),
    ),
    max_size=60,
)


@given(LINES, st.integers(1, 70))
def test_a_log_read_in_blocks_gives_the_same_history(lines, at_once) -> None:
    texts = [as_log([started()])[:-1]]
    for at, (event, change) in enumerate(lines, 1):
        if event is None:
            texts.append(change)
        else:
            # Times do not go back, as evaluations may be read before the steps around them.
            line = as_log([replace(event, time=T0 + at)])[:-1]
            texts.append(line if change is None else line.replace(*change, 1))
    whole, alone, offset = JobHistory(), JobHistory(), 0
    for text in texts:
        alone.add(parse(text + b"\n", offset))
        offset += len(text) + 1
    offset = 0
    for first in range(0, len(texts), at_once):
        piece = b"".join(text + b"\n" for text in texts[first : first + at_once])
        whole.add(parse(piece, offset))
        offset += len(piece)

    assert _state(whole) == _state(alone)


def _state(history: JobHistory) -> str:
    columns = ("time", "step", "epoch", "num_records", "loss", "num_left_out", "longest_s")
    return repr(
        [
            *(history.steps[name].tolist() for name in (*columns, "attempt", "counts")),
            *(history.starts, history.evaluations, history.epochs, history.checkpoints),
            *(history.epoch, np.trim_zeros(history.shard_batches, "b").tolist()),
            *(sorted(history.shard_of.items()), history.has_batches),
            *(history.tenures, history.end, history.damages, history.num_damaged),
            *(history.num_unknown, history.first_time, history.last_time, history.last_times),
        ]
    )
