"""What is shown of small logs: status, lanes, shards, findings, rounds, and what is not shown."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.page.conftest import (
    T0,
    elastic_events,
    elastic_job,
    evaluated,
    finished_events,
    history_of,
    joined,
    left,
    saved,
    started,
    step,
)

from elasticdl.events import (
    Checkpointed,
    Evaluated,
    JobFailed,
    JobFinished,
    PartyJoined,
    RoundFinished,
    WorkerLeft,
)
from elasticdl.job import Federation, Tracking
from elasticdl.page.facts import Facts
from elasticdl.page.redaction import redacted
from elasticdl.page.shard_map import DONE, cells, shard_states
from elasticdl.page.status import JobState, status_of
from elasticdl.page.timelines import Activity, lanes
from elasticdl.page.view import summary, view
from elasticdl.page.words import clock_text

LIVE = Facts("job", "out", job=elastic_job("out"), is_held=True)
NOW = T0 + 21


def texts(sections) -> list[str]:
    return [finding["text"] for finding in sections["findings"]]


def kinds(sections, rank) -> list[tuple[str, float, float]]:
    (lane,) = [lane for lane in sections["clock"]["lanes"] if lane["rank"] == rank]
    return [(kind, round(a - T0, 1), round(b - T0, 1)) for a, b, kind, _ in lane["segments"]]


@pytest.fixture
def shown():
    return view(history_of(elastic_events()), LIVE, NOW)


# --- status -----------------------------------------------------------------------------------


def test_a_running_job_shows_when_it_will_end() -> None:
    events = [started(num_records=1600), joined(0, 1, 0), joined(1, 2, 0)]
    events += [step(n, rows=[(0, 0, 0, n, n + 1), (0, 1, 1, n, n + 1)]) for n in range(1, 101)]

    head = view(history_of(events), LIVE, T0 + 100)["head"]

    # A step a second, of 16 records: the second epoch takes 100 s.
    assert head["state"] == "running"
    assert head["eta_s"] == pytest.approx(100, abs=5)
    assert head["ends_at"] == pytest.approx(T0 + 200, abs=5)


@pytest.mark.parametrize(
    ("more", "held", "state", "word"),
    [
        ([], True, JobState.RUNNING, "training"),
        ([], False, JobState.KILLED, "without reporting why"),
        (
            [JobFailed(time=T0 + 21, kind="DataError", message="no file")],
            False,
            JobState.FAILED,
            "no file",
        ),
        (
            [JobFailed(time=T0 + 21, kind="Interrupted", message="", step=15)],
            False,
            JobState.INTERRUPTED,
            "step 15",
        ),
    ],
)
def test_the_status_of_a_job_is_shown(more, held, state, word) -> None:
    status = status_of(history_of([*elastic_events(), *more]), replace(LIVE, is_held=held), NOW)

    assert status.state is state
    assert word in status.message


def test_a_waiting_job_shows_what_it_waits_for() -> None:
    few = [started(), joined(0, 1, 1)]
    late = [started(), joined(0, 1, 1), step(1, at=2), step(2, at=3), joined(1, 2, 4)]
    none = [started(), joined(0, 1, 1), joined(1, 2, 1)]

    said = [status_of(history_of(e), LIVE, T0 + 30).message for e in (few, late, none)]

    assert said[0].startswith("waiting for workers: 1 of at least 2")
    assert said[1] == "waiting for 2 workers to join (0, 1), for 29.0 s"
    assert "waiting for 2 workers to join" in said[2]


def test_a_remote_holder_that_is_silent_for_long_may_be_dead() -> None:
    facts = replace(LIVE, is_elsewhere=True, holder="process 7 on far")

    status = status_of(history_of(elastic_events()), facts, NOW + 3600)

    assert status.state is JobState.UNKNOWN
    assert "process 7 on far" in status.message


# --- lanes ------------------------------------------------------------------------------------


def test_a_lane_shows_start_join_train_lost_and_replaced(shown) -> None:
    assert kinds(shown, 1) == [
        ("starting", 0.3, 1.0),
        ("joining", 1.0, 2.0),
        ("training", 2.0, 11.4),
        # Its replacement was prepared meanwhile, and has the rank from 17.0 on.
        ("lost", 11.4, 17.0),
        ("joining", 17.0, 18.0),
        ("training", 18.0, 21.0),
    ]


def test_a_worker_is_not_behind_while_no_worker_commits(shown) -> None:
    assert [kind for kind, _, _ in kinds(shown, 0)] == ["starting", "joining", "training"]


def test_a_worker_without_a_batch_while_others_commit_is_behind() -> None:
    events = [started(), joined(0, 1, 0), joined(1, 2, 0)]
    for number in range(1, 12):
        rows = [(0, 0, 0, number, number + 1)]
        if number < 4 or number > 9:
            rows.append((0, 1, 1, number, number + 1))
        events.append(step(number, rows=rows))

    shown = view(history_of(events), LIVE, T0 + 12)

    assert ("behind", 3.0, 10.0) in kinds(shown, 1)


def test_only_eventful_workers_of_ten_thousand_are_drawn() -> None:
    events = [started(), *(joined(rank, rank + 1, 1) for rank in range(10_000))]
    events += [
        WorkerLeft(time=T0 + 2, step=0, rank=7_777, incarnation=7_778, reason="died"),
        joined(7_777, 10_001, 3),
    ]

    drawn, num_more = lanes(history_of(events).tenures, Activity(np.zeros(0)), T0 + 5)

    assert 7_777 in [lane["rank"] for lane in drawn]
    assert len(drawn) + num_more == 10_000


def test_a_stall_is_marked_with_its_cause(shown) -> None:
    (stall,) = shown["clock"]["stalls"]

    assert stall["seconds"] == 4.0
    assert stall["cause"] == "worker 1 died"


def stopped_worker_events() -> list:
    """Return a job whose second worker stands still from 10 s to 25 s, and an evaluation."""
    events = [started(), joined(0, 1, 0), joined(1, 2, 0)]
    for at in range(1, 31):
        rows = [(0, 0, 0, at - 1, at)]
        if not 10 < at < 25:
            rows.append((0, 1, 1, at - 1, at))
        if at not in {6, 7, 8, 11, 12, 13}:
            pause = 3.5 if at in {9, 14} else 0.1
            events.append(step(at, rows=rows, longest_s=pause))
        if at == 8:
            events.append(evaluated(5, 0.5, at=8.5))
    return events


def test_a_stuck_worker_is_behind_even_if_all_waited_at_first() -> None:
    shown = view(history_of(stopped_worker_events()), LIVE, T0 + 30)

    assert ("behind", 10.0, 25.0) in kinds(shown, 1)
    assert [stall["cause"] for stall in shown["clock"]["stalls"]] == [
        "the validation data was evaluated",
        "worker 1 did not answer",
    ]
    said = "Worker 1 committed no batch for 15.0 s from "
    assert [text for text in texts(shown) if text.startswith(said)]


def test_a_currently_stuck_worker_is_behind_and_named_on_top() -> None:
    events = [event for event in stopped_worker_events() if event.time < T0 + 22]

    shown = view(history_of(events), LIVE, T0 + 22)

    assert ("behind", 10.0, 21.0) in kinds(shown, 1)
    assert shown["head"]["message"] == ("training; 1 worker without a batch (1), for up to 12.0 s")


def test_pauses_for_evaluations_are_one_note_without_a_warning() -> None:
    shown = view(history_of(stopped_worker_events()), LIVE, T0 + 30)

    warnings = [each["text"] for each in shown["findings"] if each["level"] == "warning"]
    assert not any("evaluated" in text for text in warnings)
    assert (
        "Evaluations and checkpoints paused the training 1 time for 3.5 s in total, at most 3.5 s "
        "at once. Shorter pauses are not counted." in texts(shown)
    )


def test_no_worker_is_behind_during_ten_thousand_evaluations() -> None:
    events, at = [started(), joined(0, 1, 0), joined(1, 2, 0)], 0.0
    for number in range(1, 3001):
        is_after = number % 10 == 0
        at += 9.0 if is_after else 1.0
        if is_after:
            events.append(evaluated(number, 0.5, at=at - 0.5))
        rows = [(0, rank, rank, 0, 1) for rank in (0, 1)]
        events.append(step(number, at=at, rows=rows, longest_s=8.0 if is_after else 0.1))

    shown = view(history_of(events), LIVE, T0 + at)

    assert {kind for kind, _, _ in kinds(shown, 0)} == {"joining", "training"}
    assert any("paused the training 300 times for 40 min 0 s in total" in t for t in texts(shown))
    assert len(shown["clock"]["stalls"]) == 200


def test_long_steps_leave_no_worker_behind() -> None:
    rows = [(0, rank, rank, 0, 1) for rank in (0, 1)]
    events = [started(), joined(0, 1, 0), joined(1, 2, 0)]
    events += [step(number, at=5.0 * number, rows=rows, longest_s=5.0) for number in range(1, 40)]

    shown = view(history_of(events), LIVE, T0 + 200)

    assert "behind" not in {kind for kind, _, _ in kinds(shown, 0)}


# --- shards -----------------------------------------------------------------------------------


def test_shards_are_done_leased_returned_or_queued(shown) -> None:
    # 0 and 1 are done, workers 0 and 1 are on 2 and 3, 4 waits.
    assert shown["shards"]["cells"] == "33110"
    assert shown["shards"]["holders"] == {"2": 0, "3": 1}


def test_a_shard_of_a_dead_worker_is_returned() -> None:
    events = elastic_events()[:14]  # up to its death
    events.append(WorkerLeft(time=T0 + 12, step=10, rank=1, incarnation=2, reason="died"))

    assert view(history_of(events), LIVE, T0 + 12)["shards"]["cells"] == "33120"


def test_one_returned_shard_of_half_a_million_is_visible() -> None:
    states = np.full(500_000, DONE)
    states[123_456] = 2

    shown = cells(states)

    assert len(shown["cells"]) <= 1200
    assert shown["cells"].count("2") == 1
    assert shown["counts"]["done"] == 499_999


def test_a_shorter_last_shard_is_done_with_fewer_batches() -> None:
    states = shard_states(
        np.array([8, 3]), [], num_shards=2, batches_per_shard=8, last_shard_batches=3
    )

    assert states.tolist() == [DONE, DONE]


def test_shards_of_a_new_epoch_start_queued_and_revert_with_it() -> None:
    events = [started(), *(step(n, rows=[(0, 0, 0, n - 1, n)]) for n in range(1, 9)), saved(8)]
    events += [step(9, epoch=1, rows=[(1, 0, 4, 0, 1)])]
    again = [*events, started(at=11, attempt=2, resumed_from_step=8)]

    shown = [view(history_of(each), LIVE, T0 + 12)["shards"] for each in (events, again)]

    assert [(each["epoch"], each["cells"]) for each in shown] == [(1, "00001"), (0, "30000")]


# --- findings ---------------------------------------------------------------------------------


def test_the_loss_of_a_worker_shows_when_and_how_long_others_waited(shown) -> None:
    (text,) = [text for text in texts(shown) if text.startswith("Worker 1 was lost")]

    assert "around step 10: it died. The others waited 4.0 s." in text
    assert "replaced after 5.6 s, and its replacement trained after 6.6 s" in text


def test_the_loss_of_a_worker_shows_the_speed_before_and_after() -> None:
    events = [started(), joined(0, 1, 0), joined(1, 2, 0)]
    both = [(0, 0, 0, 0, 1), (0, 1, 1, 0, 1)]
    events += [step(n, rows=both, num_records=3200, longest_s=0.1) for n in range(1, 11)]
    events.append(left(1, 2, 10.5, number=10))
    alone = [(0, 0, 0, 0, 1)]
    events += [step(n, rows=alone, num_records=12, longest_s=0.1) for n in range(11, 21)]
    events.append(joined(1, 3, 20.5, replaces=2))
    events += [step(n, rows=both, num_records=30, longest_s=0.1) for n in range(21, 31)]

    (text,) = [t for t in texts(view(history_of(events), LIVE, T0 + 31)) if "was lost" in t]

    assert text.endswith("Speed: 3,200 examples/s before, 12 without it, 30 with its replacement.")


def test_overfitting_is_reported_with_step_and_numbers(shown) -> None:
    (text,) = [text for text in texts(shown) if "verfitting" in text]

    assert text.startswith(
        f"Overfitting since step 8 ({clock_text(T0 + 18.1)}): validation loss 0.7 at step 15, "
        "minimum 0.4 at step 8, "
    )
    assert "at step 8, while the training loss fell from" in text


def test_a_noisy_validation_loss_is_not_overfitting() -> None:
    losses = (0.06, 0.054, 0.066, 0.06, 0.07, 0.058, 0.066, 0.061, 0.069)
    events = [started(), *(evaluated(n, loss) for n, loss in enumerate(losses, 1))]

    (text,) = texts(view(history_of(events), LIVE, T0 + 9))

    assert text.startswith("The validation loss varies too much")


# Of a training of digits, a third of whose labels were wrong.
RISES_SLOWLY = (
    1.127, 0.9466, 0.9339, 0.876, 0.9571, 0.8563, 0.8457, 0.9275, 0.8099, 0.8149, 0.867, 0.874,
    0.7909, 0.871, 0.854, 0.809, 0.8096, 0.8937, 0.8562, 0.8231, 0.9273, 0.8666, 0.8722, 0.9044,
    0.8838, 0.9875, 0.9558, 0.9732, 0.912, 0.9317,
)  # fmt: skip


def test_a_slow_rise_of_a_noisy_validation_loss_is_overfitting() -> None:
    losses = list(enumerate(RISES_SLOWLY, 1))
    events = [started(), joined(0, 1, 0)]
    for number, loss in losses:
        events += [step(number, loss=1.6 / number), evaluated(number, loss)]

    found = texts(view(history_of(events), LIVE, T0 + 31))

    assert [text for text in found if text.startswith("Overfitting since step 13")], found


def test_a_pause_reported_late_belongs_to_the_loss_before_it() -> None:
    events = [started(), joined(0, 1, 0), joined(1, 2, 0)]
    events += [step(n, longest_s=0.1) for n in range(1, 11)]
    # It is seen to be gone at once; steps it took part in are told of for two more seconds.
    died = WorkerLeft(time=T0 + 8.5, step=8, rank=1, incarnation=2, reason="died")
    events.insert(events.index(events[-2]), died)
    events += [step(11, at=14.2, longest_s=4.2), step(12, at=15.2, longest_s=0.1)]

    shown = view(history_of(events), LIVE, T0 + 16)

    assert any("The others waited 4.2 s" in text for text in texts(shown))
    assert shown["clock"]["stalls"][0]["cause"] == "worker 1 died"


def test_a_falling_validation_loss_is_not_overfitting() -> None:
    events = [
        started(),
        *(step(n) for n in range(1, 9)),
        *(evaluated(n, 1 / n) for n in range(1, 9)),
    ]

    (text,) = texts(view(history_of(events), LIVE, T0 + 9))

    assert text.startswith("No overfitting so far")


def test_a_last_validation_loss_above_the_minimum_is_no_clean_bill() -> None:
    losses = enumerate((0.03, 0.015, 0.023), 1)
    events = [started(), *(evaluated(n, loss) for n, loss in losses), JobFinished(time=T0, step=3)]

    (text,) = texts(view(history_of(events), LIVE, T0 + 9))

    assert text.startswith("The last validation loss is above the minimum: 0.023 at step 3, mini")


def test_a_finished_job_has_no_overfitting_rather_than_none_so_far() -> None:
    losses = enumerate((0.3, 0.2, 0.1), 1)
    events = [started(), *(evaluated(n, loss) for n, loss in losses), JobFinished(time=T0, step=3)]

    (text,) = texts(view(history_of(events), LIVE, T0 + 9))

    assert text.startswith("No overfitting: validation loss 0.1")


def test_workers_that_were_all_lost_at_once_did_not_wait_for_each_other() -> None:
    events = [started(), joined(0, 1, 0), joined(1, 2, 0), *(step(n) for n in range(1, 9))]
    events += [left(0, 1, 8.1, number=8), left(1, 2, 8.3, number=8)]
    events += [joined(0, 3, 11), joined(1, 4, 11), step(9, at=12, longest_s=4.0)]

    found = texts(view(history_of(events), LIVE, T0 + 13))

    assert sum("was lost" in text for text in found) == 2
    assert not [text for text in found if "The others waited" in text]


def test_a_loss_that_is_not_finite_comes_first() -> None:
    events = [started(), step(1), step(2, loss=float("nan")), step(3)]

    shown = view(history_of(events), LIVE, T0 + 4)

    assert shown["findings"][0]["level"] == "bad"
    assert shown["curves"]["metrics"]["loss"]["steps"]["bad"] == [2.0]


def test_a_new_attempt_shows_what_was_repeated() -> None:
    events = [started(), step(1), step(2), step(3)]
    events += [started(at=13, attempt=2, resumed_from_step=2), step(3, at=14)]

    (text,) = texts(view(history_of(events), LIVE, T0 + 15))

    assert (
        "10.0 s after the last event of attempt 1. It resumed from step 2; steps up to 3 were"
        in text
    )


# --- rounds -----------------------------------------------------------------------------------


def federated_events() -> list:
    events = [started(num_epochs=4, num_records=0, num_shards=0)]
    events += [
        PartyJoined(time=T0 + 1, step=0, party=p, num_examples=10) for p in ("north", "south")
    ]
    for number in range(1, 4):
        away = {"south": "no answer within 5 s"} if number == 2 else {}
        there = ["north"] if away else ["north", "south"]
        events.append(
            RoundFinished(
                time=T0 + 1 + 2 * number,
                step=number,
                parties=there,
                left_out=away,
                num_examples=20,
                metrics={"loss": 1 / number},
                seconds=2.0,
                party_metrics={party: {"loss": 0.5, "accuracy": 0.25} for party in there},
            )
        )
    return events


FEDERATED = replace(
    LIVE, job=elastic_job("out", workers=None, federation=Federation(num_rounds=4, num_parties=2))
)


def test_a_federation_shows_excluded_parties_with_reasons() -> None:
    shown = view(history_of(federated_events()), FEDERATED, T0 + 8)

    assert "Party 'south' was left out of 1 round of 3 (2): no answer within 5 s." in texts(shown)
    assert [r["answers"] for r in shown["rounds"]["rounds"]] == [[1, 1], [1, 2], [1, 1]]
    assert shown["rounds"]["parties"][0]["metrics"] == {"loss": 0.5, "accuracy": 0.25}
    assert shown["head"]["progress"] == "round 3/4"
    assert shown["head"]["eta_s"] == 2.0
    assert shown["head"]["message"] == "waiting for the parties' answers to round 4, for 1.0 s"
    assert shown["curves"]["unit"] == "round"


# --- the rest ---------------------------------------------------------------------------------


def test_the_best_checkpoint_is_marked(shown) -> None:
    assert shown["curves"]["best_step"] == 4
    rows = shown["checkpoints"]["rows"]
    assert [(row["step"], row["is_best"]) for row in rows] == [(4, True), (15, False)]


def test_the_best_checkpoint_is_shown_with_metric_and_existence() -> None:
    events = [started(), evaluated(1, 0.25), saved(1, best=True)]
    events += [saved(number) for number in range(2, 200)]

    shown = [
        view(history_of(events), replace(LIVE, kept_steps=kept), T0 + 300)["checkpoints"]
        for kept in ([1], [199])
    ]

    said = "The best checkpoint by val_loss (0.25) is of step 1; it is"
    assert [each["summary"] for each in shown] == [
        f"{said} still on disk.",
        f"{said} no longer on disk.",
    ]
    # However many there are, it is listed.
    assert [row["step"] for row in shown[0]["rows"] if row["is_best"]] == [1]


def test_data_and_code_are_shown_without_the_definition(shown) -> None:
    assert shown["about"]["data"] == "data/*.recordio"
    assert shown["about"]["model_def"] == "small"
    assert shown["about"]["versions"] == {}


def test_events_of_a_federation_mention_rounds() -> None:
    events = [
        *federated_events(),
        Evaluated(time=T0 + 8, step=3, epoch=3, metrics={"loss": 0.5}),
        Checkpointed(time=T0 + 9, step=3, blocked_s=0.0, num_bytes=10),
        JobFailed(time=T0 + 10, step=3, kind="Interrupted", message="interrupted."),
        started(11, attempt=2, resumed_from_step=3, num_epochs=4, num_records=0),
        JobFinished(time=T0 + 12, step=4, metrics={"loss": 0.5}),
    ]
    shown = view(history_of(events), FEDERATED, T0 + 13)

    said = [text for _, _, text in shown["events"]]
    assert "Evaluated at round 3: loss 0.5" in said
    assert "Checkpoint of round 3 (10 B)" in said
    assert "Interrupted; round 3 is saved" in said
    assert "resumed from round 3" in said[-2]
    assert said[-1] == "Finished at round 4: loss 0.5"
    marks = [text for _, _, text in shown["clock"]["marks"]]
    assert not [text for text in (*said, *marks, *texts(shown)) if "step" in text]


def test_overfitting_of_a_federation_is_reported_by_round() -> None:
    events = federated_events()
    events += [evaluated(n, loss, at=n + 4) for n, loss in ((1, 0.2), (2, 0.9), (3, 0.95))]

    (text,) = [t for t in texts(view(history_of(events), FEDERATED, T0 + 9)) if "loss" in t]

    assert "round 1" in text
    assert "step" not in text


def test_page_data_are_valid_json_for_any_log() -> None:
    events = [started(), step(1, loss=float("inf")), evaluated(1, float("nan")), saved(1)]

    json.dumps(view(history_of(events), LIVE, T0 + 2), allow_nan=False)
    json.dumps(view(history_of([]), LIVE, T0), allow_nan=False)
    json.dumps(summary(history_of(events), LIVE, T0), allow_nan=False)


def test_secrets_are_not_shown() -> None:
    job = elastic_job(
        "s3://me:hunter2@bucket/out",
        tracking=Tracking(uri="https://t0ken@host", params={"api_key": "k-123", "lr": 0.1}),
    )
    facts = replace(LIVE, definition=json.loads(job.to_json()), job=job, output=str(job.output))
    events = [
        *finished_events()[:-1],
        JobFailed(
            time=T0 + 22, kind="DataError", message="GET s3://u:sesame@h/x?X-Amz-Signature=abc"
        ),
    ]

    shown = json.dumps(
        [view(history_of(events), facts, NOW), summary(history_of(events), facts, NOW)]
    )

    for secret in ("hunter2", "t0ken", "k-123", "sesame", "=abc"):
        assert secret not in shown


def test_numbers_with_secret_sounding_names_are_shown() -> None:
    assert redacted({"num_tokens": 512, "token": "x"}) == {
        "num_tokens": 512,
        "token": "(not shown)",
    }
