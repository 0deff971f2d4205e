"""Federations in one process: what parties and rounds come to."""

from __future__ import annotations

import signal
import time
from dataclasses import replace

import numpy as np
import pytest
from tests.engines.conftest import write_records
from tests.engines.federated.conftest import assert_same_bits, make_job
from tests.notes import Notes

import elasticdl
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.data.sources import open_source
from elasticdl.engines.federated.protocol.messages import read_answer
from elasticdl.engines.federated.simulation import simulate
from elasticdl.engines.federated.simulation.simulate import SimulatedMember
from elasticdl.engines.federated.strategies.fusions import FUSIONS, PartyUpdate
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import OutputTakenError, TrainingError
from elasticdl.event_file import read_events
from elasticdl.events import Evaluated, JobFinished, PartyJoined, RoundFinished
from elasticdl.testing.memory_source import MemorySource

LINEAR = """
import numpy as np
import torch
from torch import nn


def custom_model():
    return nn.Linear(4, 3)


def data_schema():
    return [
        {"name": "x", "shape": [4], "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    return np.stack([r["x"] for r in records]), np.stack([r["label"] for r in records])


def loss(output, labels):
    return nn.functional.cross_entropy(output, labels.flatten())


def optimizer(parameters):
    return torch.optim.SGD(parameters, 0.1)
"""


def turned(data):
    """Return records whose labels are all one too many."""
    source = open_source(data)
    records = source.read_records(0, source.num_records, None)
    return MemorySource([{**r, "label": (r["label"] + 1) % 3} for r in records])


def weights(output):
    return dict(load_trained_model(str(output)).params)


def events(tmp_path, kind, output="out"):
    happened = read_events(tmp_path / output / "events.jsonl")
    return [event for event in happened if isinstance(event, kind)]


@pytest.mark.parametrize("model_def", ["small", "torch_small"])
def test_one_party_trains_as_without_a_federation(model_def, job, member, run, place, tmp_path):
    run(job(model_def=model_def, num_rounds=3, num_parties=1, num_local_epochs=2), member(0))

    elasticdl.train(
        model_zoo=str(place / "zoo"),
        model_def=model_def,
        data=str(place / "party0.recordio"),
        output=str(tmp_path / "alone"),
        num_epochs=6,
        minibatch_size=16,
        seed=7,
        reporter=Silent(),
    )

    assert_same_bits(weights(tmp_path / "out"), weights(tmp_path / "alone"))


def test_a_round_fuses_the_trainings_of_all_parties(job, member, run, tmp_path):
    # Without dropout, which a party draws by its number in the federation.
    model = {"model_def": "torch_small", "params": {"rate": 0.0}, "num_rounds": 1}
    updates = []
    for number, num_examples in ((0, 96), (1, 40)):
        run(job(f"alone{number}", num_parties=1, **model), member(number))
        alone = weights(tmp_path / f"alone{number}")
        updates.append(PartyUpdate(f"p{number}", alone, num_examples))
    run(job(**model), member(0), member(1))

    fused = FUSIONS["fedavg"].fuse(updates[0].weights, updates, {}).weights
    assert_same_bits(weights(tmp_path / "out"), fused)


@pytest.fixture(scope="module")
def measured(place, run, tmp_path_factory):
    """Return a folder and outcomes: of two parties that measure, and of two of which one does."""
    folder = tmp_path_factory.mktemp("measured")
    data = {"validation_data": str(place / "validation.recordio")}
    both = [SimulatedMember(f"p{n}", str(place / f"party{n}.recordio"), **data) for n in (0, 1)]
    asked = make_job(place, folder / "out", num_rounds=3)
    two = run(asked, *both)
    one = run(
        replace(asked, output=str(folder / "one")), both[0], replace(both[1], validation_data=None)
    )
    return folder, two, one


def test_each_round_is_reported_with_its_parties_and_metrics(measured):
    folder, outcome, _ = measured

    rounds = events(folder, RoundFinished)
    assert [event.step for event in rounds] == [1, 2, 3]
    assert all(list(event.parties) == ["p0", "p1"] for event in rounds)
    assert all(event.num_examples == 136 for event in rounds)
    assert rounds[2].metrics["loss"] < rounds[0].metrics["loss"]
    own = rounds[0].party_metrics
    assert set(own) == {"p0", "p1"}
    both = (96 * own["p0"]["loss"] + 40 * own["p1"]["loss"]) / 136
    assert both == pytest.approx(rounds[0].metrics["loss"])
    assert [event.step for event in events(folder, Evaluated)] == [1, 2, 3]
    assert {event.party: event.num_examples for event in events(folder, PartyJoined)} == {
        "p0": 96,
        "p1": 40,
    }
    assert events(folder, JobFinished)[0].step == 3
    assert outcome.metrics["val_accuracy"] > 0.8


def test_the_global_model_is_a_trained_model_like_any_other(measured, place):
    _, _, outcome = measured
    validation = str(place / "validation.recordio")

    evaluated = elasticdl.evaluate(trained_model=outcome.output, data=validation, reporter=Silent())

    assert evaluated.metrics["loss"] == pytest.approx(outcome.metrics["val_loss"], rel=1e-5)


def test_metrics_of_two_parties_equal_those_of_their_joined_data(measured):
    _, two, one = measured

    assert two.metrics["val_accuracy"] == pytest.approx(one.metrics["val_accuracy"])
    assert two.metrics["val_loss"] == pytest.approx(one.metrics["val_loss"], rel=1e-5)


def test_metrics_that_a_party_withholds_are_not_sent(job, member, run, place, tmp_path):
    validation = str(place / "validation.recordio")
    quiet = [member(n, validation_data=validation, shares_metrics=False) for n in (0, 1)]
    outcome = run(job(model_def="torch_small"), *quiet)

    assert outcome.metrics == {}
    assert events(tmp_path, Evaluated) == []
    rounds = events(tmp_path, RoundFinished)
    assert all(event.metrics == event.party_metrics == {} for event in rounds)


@pytest.mark.parametrize(
    ("shares", "measures", "told"),
    [
        ((False, False), False, 1),
        ((False, True), False, 0),
        ((False, False), True, 0),
    ],
)
def test_an_unknown_loss_is_reported_once(job, member, place, shares, measures, told):
    own = str(place / "validation.recordio") if measures else None
    notes = Notes()
    members = [member(number, shares_metrics=each) for number, each in enumerate(shares)]

    asked = job(model_def="torch_small", num_rounds=2)
    simulate.train(replace(asked, validation_data=own), notes, members)

    said = (
        "The parties do not report metrics (privacy.metrics: false), so the aggregator has no loss "
        "to show."
    )
    assert notes.texts.count(said) == told


def test_more_rounds_continue_and_a_repetition_does_nothing(job, member, run, tmp_path):
    parties = member(0), member(1)
    asked = job(model_def="torch_small", num_rounds=4)
    run(job(model_def="torch_small", num_rounds=2), *parties)
    more = run(asked, *parties)
    again = run(asked, *parties)
    run(replace(asked, output=str(tmp_path / "whole")), *parties)

    assert (more.step, again.already_done) == (4, True)
    assert_same_bits(weights(tmp_path / "out"), weights(tmp_path / "whole"))


def test_another_fusion_is_another_job(job, member, run):
    run(job(model_def="torch_small", num_rounds=1), member(0), member(1))

    with pytest.raises(OutputTakenError):
        run(job(model_def="torch_small", fusion="iter_avg"), member(0), member(1))


def test_fedprox_without_a_proximal_term_is_fedavg(job, member, run, tmp_path):
    run(job("avg", model_def="torch_small"), member(0), member(1))
    prox = {"fusion": "fedprox", "fusion_params": {"mu": 0.0}}
    run(job("prox", model_def="torch_small", **prox), member(0), member(1))

    assert_same_bits(weights(tmp_path / "avg"), weights(tmp_path / "prox"))


@pytest.mark.parametrize("model_def", ["small", "torch_small"])
def test_a_stronger_proximal_term_keeps_parties_near_the_global_model(
    model_def, job, member, run, tmp_path
):
    one_round = {"model_def": model_def, "num_parties": 1, "num_rounds": 1}
    # Nothing is learnt: the weights that all begin with.
    run(job("before", params={"learning_rate": 0.0}, **one_round), member(0))
    before = weights(tmp_path / "before")
    kernels = [name for name in before if before[name].ndim == 2]
    moved = []
    for mu in (0.0, 1.0, 30.0):
        prox = {"fusion": "fedprox", "fusion_params": {"mu": mu}, "num_local_epochs": 4}
        run(job(str(mu), **one_round, **prox), member(0))
        after = weights(tmp_path / str(mu))
        moved.append(sum(float(np.sum((after[n] - before[n]) ** 2)) for n in kernels))

    assert moved[0] > moved[1] > moved[2] > 0


def test_fed_plus_lets_parties_keep_their_own_weights(job, member, run, tmp_path):
    model = {"model_def": "torch_small", "num_rounds": 3}
    outcome = run(job(fusion="fed_plus", **model), member(0), member(1))
    run(job("avg", **model), member(0), member(1))

    assert outcome.step == 3
    one, other = weights(tmp_path / "out"), weights(tmp_path / "avg")
    assert any(not np.array_equal(one[n], other[n]) for n in one)


def test_a_server_optimizer_keeps_its_state_between_rounds(job, member, run, tmp_path):
    fedadam = {"fusion": "fedadam", "fusion_params": {"learning_rate": 0.05}}
    fedadam["model_def"] = "torch_small"
    run(job(num_rounds=1, **fedadam), member(0), member(1))
    run(job(num_rounds=3, **fedadam), member(0), member(1))
    run(job("whole", num_rounds=3, **fedadam), member(0), member(1))

    assert_same_bits(weights(tmp_path / "out"), weights(tmp_path / "whole"))


def test_gradients_of_all_parties_give_one_global_step(job, member, run, place, tmp_path):
    """Two parties' gradients, each counted by its examples, are those of all their records."""
    (place / "zoo" / "linear.py").write_text(LINEAR)
    fusion = {"fusion": "gradient_avg", "fusion_params": {"learning_rate": 0.5}, "num_rounds": 3}
    run(job(model_def="linear", **fusion), member(0), member(1))
    both = ",".join(str(place / f"party{n}.recordio") for n in (0, 1))
    run(job("both", model_def="linear", num_parties=1, **fusion), SimulatedMember("all", both))

    one, other = weights(tmp_path / "out"), weights(tmp_path / "both")
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-6)
    losses = [event.metrics["loss"] for event in events(tmp_path, RoundFinished)]
    assert losses[2] < losses[0]


def test_models_with_statistics_cannot_be_trained_by_gradients_alone(job, member, run):
    with pytest.raises(TrainingError, match="BatchNorm"):
        run(job(model_def="torch_small", fusion="gradient_avg", num_rounds=1), member(0), member(1))


def test_an_aggregator_with_its_own_data_evaluates_itself(job, member, run, place, tmp_path):
    own = replace(
        job(model_def="torch_small", num_rounds=2), validation_data=str(place / "party2.recordio")
    )
    outcome = run(own, member(0, shares_metrics=False), member(1, shares_metrics=False))

    assert outcome.metrics["val_accuracy"] > 0.3
    assert [event.step for event in events(tmp_path, Evaluated)] == [1, 2]


def test_the_training_ends_when_the_model_is_accurate_enough(job, member, run, place, tmp_path):
    good = replace(
        job(model_def="torch_small", num_rounds=50, termination_accuracy=0.8, num_local_epochs=2),
        validation_data=str(place / "party2.recordio"),
    )
    outcome = run(good, member(0), member(1))
    again = run(good, member(0), member(1))

    assert outcome.step < 50
    assert outcome.metrics["val_accuracy"] >= 0.8
    assert again.already_done


def test_zeno_excludes_parties_that_increase_the_aggregators_loss(
    job, member, run, place, tmp_path
):
    """Party 1 has inverted labels."""
    (place / "zoo" / "linear.py").write_text(LINEAR)
    zeno = {"fusion": "zeno", "fusion_params": {"byzantine_threshold": 1}, "num_parties": 3}
    asked = replace(
        job(model_def="linear", num_rounds=2, **zeno),
        validation_data=str(place / "validation.recordio"),
    )
    write_records(place / "liar.recordio", 96, seed=5)
    liar = SimulatedMember("liar", str(place / "liar.recordio"), open_source=turned)
    run(asked, member(0), member(2), liar)

    assert all(list(e.parties) == ["p0", "p2"] for e in events(tmp_path, RoundFinished))


def told(change, **facts):
    """Return a reply as it arrives when its sender has changed arrays and facts on the way."""

    def lie(reply):
        arrays, sent = reply.to_message()
        changed = {name: change(name, array) for name, array in arrays.items()}
        return read_answer(changed, {**sent, **facts})

    return lie


LOSS = "training_metrics/loss/0"
LIES = {
    "[3, 2], [], which cannot be read": told(lambda n, a: np.ones((3, 2)) if n == LOSS else a),
    "[1], [], which cannot be read": told(lambda n, a: np.ones(1) if n == LOSS else a),
    "a training loss of nan": told(lambda n, a: np.array(np.nan) if n == LOSS else a),
    "complex128": told(lambda n, a: np.array(1j) if n == LOSS else a),
    # An honest machine may have the other order.
    "": told(lambda n, a: a.astype(a.dtype.newbyteorder(">"))),
}


def test_a_party_with_invalid_metrics_is_excluded_with_the_reason(job, member, place, tmp_path):
    (place / "zoo" / "linear_lies.py").write_text(LINEAR)

    def change(request, answer):
        lies = answer.party == "p1" and request.kind == "train"
        return list(LIES.values())[request.round - 1](answer) if lies else answer

    asked = job(model_def="linear_lies", num_rounds=len(LIES), quorum=0.5)
    simulate.train(asked, Silent(), [member(0), member(1)], change=change)

    left_out = [event.left_out.get("p1", "") for event in events(tmp_path, RoundFinished)]
    for why, expected in zip(left_out, LIES, strict=True):
        assert expected in why
        assert bool(why) == bool(expected)


def test_an_invalid_first_description_does_not_exclude_others(job, member, place, tmp_path):
    (place / "zoo" / "linear_first.py").write_text(LINEAR)

    def change(request, answer):
        if answer.party != "p0" or request.kind != "join":
            return answer
        return replace(answer, example={"features": {"dtype": "float32", "shape": [5, 9]}})

    asked = job(model_def="linear_first", num_rounds=1, quorum=0.5)
    simulate.train(asked, Silent(), [member(0), member(1)], change=change)

    (finished,) = events(tmp_path, RoundFinished)
    assert list(finished.parties) == ["p1"]
    assert "no model can be built for the examples" in finished.left_out["p0"]


CTRL_C = """
def input_fn(records):
    # An example, by which parties join, is no minibatch. The thread outlives the test: it must not
    # interrupt another one, nor keep the random numbers for itself.
    held = os.environ.pop("HELD", None) if len(records) == 16 else None
    if held is not None:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(200):
            time.sleep(0.1 * os.path.exists(held))
"""


@pytest.mark.timeout(60)
def test_ctrl_c_does_not_wait_for_the_end_of_a_partys_training(
    job, member, run, place, tmp_path, monkeypatch
):
    slow = LINEAR.replace("\ndef input_fn(records):\n", CTRL_C)
    (place / "zoo" / "slow.py").write_text(f"import os, signal, time\n{slow}")
    held = tmp_path / "held"
    held.touch()
    monkeypatch.setenv("HELD", str(held))
    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt) as interrupted:
        run(job(model_def="slow"), member(0), member(1))

    assert interrupted.value.__notes__ == [
        "Nothing was saved yet; run the same command to start again."
    ]
    assert time.monotonic() - began_s < 10
    held.unlink()
    # As before: whoever comes next is interrupted as Python interrupts.
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
