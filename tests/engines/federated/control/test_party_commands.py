"""A party that is told something: which model it has, how good that is, where it goes."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from tests.engines.federated.conftest import TORCH_MODEL, assert_same_bits

import elasticdl
from elasticdl import zoo
from elasticdl.artifacts.checkpoint_store import CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.definition import Mode
from elasticdl.engines.engine import context_of
from elasticdl.engines.federated.client.client_state import DiskClientState
from elasticdl.engines.federated.client.party import Party, weights_of
from elasticdl.engines.federated.control.party_commands import PartyCommands
from elasticdl.engines.federated.control.status import GLOBAL_FOLDER, PartyStatus, kept_party
from elasticdl.engines.federated.protocol.messages import LocalTraining, Refusal, RoundRequest
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import DataError, DefinitionError, UsageError


class Told:
    """Orders that a test gives one by one; see `control.CommandQueue`."""

    def __init__(self):
        self.verb = None
        self.answer = None

    def take(self, timeout_s=0.0):
        order, self._order = getattr(self, "_order", None), None
        return order

    def give(self, verbs, verb, **options):
        self.verb, self.options = verb, options
        self._order = self
        verbs.run_pending()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def done(self, facts):
        self.answer = facts

    def failed(self, error):
        self.answer = error


@pytest.fixture
def party(job, place, tmp_path):
    """Return what starts a party over the same folder, as often as it is called."""
    # Without BatchNorm, whose statistics have no gradient.
    plain = TORCH_MODEL.replace("nn.BatchNorm1d(8), ", "")
    (place / "zoo" / "linear.py").write_text(plain)
    with contextlib.ExitStack() as stack:

        def start(*, validation=True, shares_metrics=False, model_def="torch_small"):
            data = str(place / "party1.recordio")
            own = replace(
                job(model_def=model_def),
                data=data,
                validation_data=str(place / "validation.recordio") if validation else None,
                federation=None,
            )
            state = tmp_path / "p1" / "state"
            memory = DiskClientState(
                stack.enter_context(CheckpointStore(OutputFolder(state))),
                stack.enter_context(CheckpointStore(OutputFolder(state / GLOBAL_FOLDER))),
            )
            opened = zoo.open_zoo(own.model.zoo)
            definition = zoo.define(own.model, context_of(own, Mode.TRAINING), opened)
            one = Party("p1", own, definition, memory, shares_metrics=shares_metrics)
            verbs = PartyCommands(tmp_path / "p1.yml", state, PartyStatus("p1", "starting"))
            verbs.opened(one, one.open(), place / "zoo")
            verbs.queue = told = Told()
            return verbs, lambda verb, **options: told.give(verbs, verb, **options)

        yield start


def asked(verbs, kind, number, weights=None, **options):
    """Have a party answer a question; None for the weights it begins with."""
    if weights is None:
        weights = weights_of(verbs.party._opened.start)
    answer = verbs.answer(
        RoundRequest(kind, "h", number, weights, LocalTraining(seed=7, **options))
    )
    assert not isinstance(answer, Refusal), answer
    return answer


def turned(weights):
    return {name: np.flip(array).copy() if array.ndim else array for name, array in weights.items()}


def test_a_party_refuses_complex_weights_before_it_connects(party, place):
    own_class = """

class Turned(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def forward(self, x):
        return (super().forward(x) * self.phase).real
"""
    model = TORCH_MODEL.replace("nn.Linear(8, 3)", "Turned(8, 3)") + own_class
    (place / "zoo" / "turned.py").write_text(model)

    with pytest.raises(DefinitionError, match=r"phase holds complex .* without a federation"):
        party(model_def="turned")


def test_optimizer_state_is_kept_unless_a_round_was_missed(party):
    verbs, _ = party()
    weights = weights_of(verbs.party._opened.start)

    def trained(history, number):
        options = LocalTraining(seed=7)
        return verbs.answer(RoundRequest("train", history, number, weights, options)).weights

    fresh = [trained(f"number {number}", number) for number in (2, 3)]
    trained("h", 1)

    assert any((fresh[0][name] != array).any() for name, array in trained("h", 2).items())
    trained("g", 1)
    assert_same_bits(trained("g", 3), fresh[1])


def test_sync_switches_evaluation_to_the_global_model(party):
    verbs, tell = party()
    answer = asked(verbs, "train", 1)
    before = tell("eval")
    other = turned(answer.weights)
    asked(verbs, "sync", 1, other)
    after = tell("eval")

    assert (before["model"], before["round"]) == ("own", 1)
    assert (after["model"], after["round"]) == ("global", 1)
    assert before["merged"]["loss"] != after["merged"]["loss"]
    asked(verbs, "train", 2, other)
    assert tell("eval")["model"] == "own"


def test_metrics_match_an_evaluation_of_the_saved_model(party, place, tmp_path):
    verbs, tell = party()
    answer = asked(verbs, "train", 1)
    own, measured = tell("save", output=str(tmp_path / "own")), tell("eval")
    other = turned(answer.weights)
    asked(verbs, "sync", 1, other)
    synced = tell("save")

    assert_same_bits(dict(load_trained_model(own["output"]).params), dict(answer.weights))
    assert_same_bits(dict(load_trained_model(synced["output"]).params), other)
    assert synced["output"] == str(tmp_path / "p1" / "saved" / "round-1-global")
    found = elasticdl.evaluate(
        trained_model=own["output"],
        data=str(place / "validation.recordio"),
        reporter=Silent(),
    )
    assert found.metrics["loss"] == pytest.approx(measured["merged"]["loss"], rel=1e-5)


def test_a_synced_model_survives_a_restart_of_the_party(party, tmp_path):
    verbs, tell = party()
    answer = asked(verbs, "train", 3)
    asked(verbs, "sync", 3, turned(answer.weights))
    synced = tell("eval")

    again, tell_again = party()

    assert tell_again("eval") == synced
    assert (again.status().model, again.status().model_round) == ("global", 3)
    kept = kept_party("p1", tmp_path / "p1" / "state", "")
    assert (kept.state, kept.model, kept.model_round) == ("not running", "global", 3)
    asked(again, "train", 1)
    assert kept_party("p1", tmp_path / "p1" / "state", "").model == "own"


def test_evaluating_and_syncing_do_not_change_the_training(party):
    verbs, tell = party()
    first = asked(verbs, "train", 1)
    tell("eval")
    asked(verbs, "sync", 1, turned(first.weights))
    tell("eval")
    looked_at = asked(verbs, "train", 2, first.weights).weights
    # The same question is answered from what was kept; another history is not.
    verbs.party.memory._store._folder.delete("checkpoints/step-0000000002")

    again = asked(verbs, "train", 2, first.weights).weights
    assert_same_bits(dict(again), dict(looked_at))


def test_a_party_that_sends_gradients_has_the_received_model(party):
    verbs, tell = party(model_def="linear")
    sent = weights_of(verbs.party._opened.start)
    asked(verbs, "train", 1, sent, sends_gradients=True)

    assert (verbs.status().model, verbs.status().model_round) == ("global", 0)
    saved = tell("save")
    assert_same_bits(dict(load_trained_model(saved["output"]).params), dict(sent))


def test_eval_without_validation_data_says_what_is_missing(party):
    verbs, tell = party(validation=False)
    asked(verbs, "train", 1)

    with pytest.raises(DataError, match="p1.yml: data.validation_uri is missing"):
        tell("eval")


def test_a_party_without_a_model_can_neither_evaluate_nor_save(party):
    _, tell = party()

    for verb in ("eval", "save"):
        with pytest.raises(UsageError, match="no model yet"):
            tell(verb)


def test_unshared_metrics_are_shown_locally(party):
    verbs, tell = party(shares_metrics=False)
    answer = asked(verbs, "train", 1)

    assert answer.evaluation_metrics == {}
    assert tell("eval")["parties"]["p1"].keys() == {"loss", "accuracy"}


def test_a_model_with_another_architecture_is_not_synced(party):
    verbs, _ = party()
    answer = verbs.answer(RoundRequest("sync", "h", 1, {"w": np.zeros(3, np.float32)}))

    assert isinstance(answer, Refusal)
    assert verbs.status().model == ""


@pytest.mark.parametrize("verb", ["train", "sync"])
def test_commands_for_the_aggregator_are_refused(verb, party):
    verbs, _ = party()

    with pytest.raises(UsageError, match="send it to its aggregator"):
        verbs.at_once(verb, {})


def test_a_party_reports_its_status(party):
    verbs, _ = party()
    before = verbs.at_once("status", {})
    asked(verbs, "train", 2)
    after = verbs.at_once("status", {})

    assert (before["state"], before["num_answered"], before["model"]) == ("connecting", 0, "")
    assert (after["num_answered"], after["last_asked"]) == (1, "train, round 2")
    assert (after["model"], after["model_round"], after["num_examples"]) == ("own", 2, 40)
