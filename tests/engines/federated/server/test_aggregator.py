"""The rounds, with parties that answer as a test says."""

from __future__ import annotations

import signal
import time
from dataclasses import replace

import numpy as np
import pytest

from elasticdl.engines.federated.protocol.messages import Refusal
from elasticdl.engines.federated.simulation import simulate
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import TrainingError
from elasticdl.event_file import read_events
from elasticdl.events import JobFailed, RoundFinished


@pytest.fixture
def train(job, member):
    """Return what trains with some parties; `change` says what becomes of their answers."""

    def train_it(change, members=(0, 1, 2), **federation):
        model = {"model_def": "torch_small"}
        asked = job(**{"num_parties": 3, "max_timeout_s": 5.0, **model, **federation})
        parties = [member(n) for n in members]
        return simulate.train(asked, Silent(), parties, change=lambda _, answer: change(answer))

    return train_it


def rounds(tmp_path):
    return [
        e for e in read_events(tmp_path / "out" / "events.jsonl") if isinstance(e, RoundFinished)
    ]


def only_p1(change):
    return lambda answer: (
        change(answer) if answer.party == "p1" and answer.kind == "train" else answer
    )


def with_weights(function):
    def change(reply):
        return replace(reply, weights={n: function(n, a) for n, a in reply.weights.items()})

    return change


BAD = {
    "NaN": (with_weights(lambda n, a: a * np.nan if a.dtype.kind == "f" else a), "finite"),
    "another shape": (with_weights(lambda n, a: a[..., :1] if a.ndim == 2 else a), "weight"),
    "no examples": (lambda reply: replace(reply, num_examples=0), "0 training examples"),
    "an old round": (lambda reply: replace(reply, round=reply.round - 1), "round"),
    "another history": (lambda reply: replace(reply, history="other"), "replied for the training"),
    "names missing": (
        lambda reply: replace(reply, weights=dict(list(reply.weights.items())[1:])),
        "without",
    ),
    "a refusal": (
        lambda reply: Refusal("p1", "UserCodeError", "raised", reply.history, reply.round),
        "UserCodeError: raised",
    ),
    "nothing": (lambda reply: None, "no answer w"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_party_with_an_unusable_answer_is_excluded_and_named(what, train, tmp_path):
    change, said = BAD[what]
    outcome = train(only_p1(change), quorum=0.6)

    assert outcome.step == 2
    for told in rounds(tmp_path):
        assert list(told.parties) == ["p0", "p2"]
        assert list(told.left_out) == ["p1"]
        assert said in told.left_out["p1"]


def test_a_silent_party_is_not_awaited_in_the_next_round(train, tmp_path):
    train(only_p1(BAD["nothing"][0]), quorum=0.6, num_rounds=3)

    assert [told.left_out["p1"] for told in rounds(tmp_path)] == [
        "no answer within 5 s",
        "no answer while the others replied; it did not answer before either",
        "no answer within 5 s",
    ]


def test_a_silent_party_is_awaited_if_the_quorum_needs_it(train, tmp_path):
    def change(answer):
        if answer.kind == "train" and (answer.party, answer.round) == ("p2", 1):
            return None
        if answer.kind == "train" and (answer.party, answer.round) == ("p1", 2):
            return Refusal("p1", "DataError", "gone", answer.history, 2)
        return answer

    train(change, quorum=0.6, num_rounds=2)

    assert [list(told.parties) for told in rounds(tmp_path)] == [["p0", "p1"], ["p0", "p2"]]


def test_a_round_without_a_quorum_fails_with_the_reason(train, tmp_path):
    with pytest.raises(TrainingError) as raised:
        train(only_p1(BAD["NaN"][0]), quorum=1.0)

    said = str(raised.value)
    assert "Round 1: 2 of 3 parties" in said
    assert "p1: " in said
    assert "finite" in said
    failed = [e for e in read_events(tmp_path / "out" / "events.jsonl") if isinstance(e, JobFailed)]
    assert "Round 1" in failed[-1].message


def test_ctrl_c_interrupts_a_round_and_training_can_resume(train, tmp_path):
    asked = []

    def interrupt(answer):
        asked.append((answer.kind, answer.round, answer.party))
        if asked[-1] == ("train", 2, "p0"):
            signal.raise_signal(signal.SIGINT)
        return answer

    with pytest.raises(KeyboardInterrupt):
        train(interrupt)

    # The others were not asked any more.
    assert asked[-1] == ("train", 2, "p0")
    assert [told.step for told in rounds(tmp_path)] == [1]
    assert train(lambda answer: answer).step == 2
    assert [told.step for told in rounds(tmp_path)] == [1, 2]


def test_a_round_refused_by_all_parties_fails(train):
    def refuse(answer):
        if answer.kind != "train":
            return answer
        return Refusal(answer.party, "DataError", "gone", answer.history, answer.round)

    with pytest.raises(TrainingError, match="0 of 3 parties"):
        train(refuse, quorum=0.3)


def test_waiting_for_missing_parties_ends_after_the_timeout(train):
    with pytest.raises(TrainingError, match=r"Only 2 of 3 parties joined within 0.2 s \(p0, p1\)"):
        train(lambda answer: answer, members=(0, 1), join_timeout_s=0.2)


def test_a_quorum_of_parties_begins_without_the_rest(train, tmp_path):
    outcome = train(
        lambda answer: answer, members=(0, 1), join_timeout_s=0.2, quorum=0.5, num_rounds=1
    )

    assert outcome.step == 1


def test_with_a_quorum_other_parties_are_awaited_as_in_a_round(train):
    started = time.monotonic()

    outcome = train(
        lambda answer: answer, members=(0, 1), quorum=0.5, num_rounds=1,
        max_timeout_s=0.3, join_timeout_s=600,
    )  # fmt: skip

    assert outcome.step == 1
    assert time.monotonic() - started < 60


def test_a_quorum_does_not_wait_for_refused_parties(train):
    def change(answer):
        if answer.party == "p1" and answer.kind == "join":
            return replace(answer, architecture={"x": ("float32", (3,))})
        return answer

    started = time.monotonic()
    outcome = train(change, quorum=0.5, num_rounds=1, max_timeout_s=None, join_timeout_s=600)

    assert outcome.step == 1
    assert time.monotonic() - started < 60


def test_a_party_with_another_architecture_cannot_join(train):
    def change(answer):
        if answer.party == "p1" and answer.kind == "join":
            return replace(answer, architecture={"x": ("float32", (3,))})
        return answer

    with pytest.raises(TrainingError, match="p1"):
        train(change, join_timeout_s=0.2)


def test_training_resumes_from_the_round_before_a_failed_one(train, tmp_path):
    def fail_in_round_2(answer):
        is_bad = answer.party == "p1" and answer.round == 2
        return Refusal("p1", "X", "y", answer.history, 2) if is_bad else answer

    with pytest.raises(TrainingError, match="Round 2"):
        train(fail_in_round_2, num_rounds=3)
    outcome = train(lambda answer: answer, num_rounds=3)

    assert outcome.step == 3
    assert [told.step for told in rounds(tmp_path)] == [1, 2, 3]
