"""Models may return namedtuples, dataclasses and dicts with attributes."""

import collections
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.training.torch.conftest import batch_of, definition_of, trainer_of
from tests.training.torch.plain import assert_parity
from torch import nn
from torch.nn import functional

from elasticdl.data.batch import Batch, leaves, map_arrays, repeated, stack
from elasticdl.data.batch import batch_of as checked
from elasticdl.definition import MetricFunctions
from elasticdl.errors import DefinitionError


class Named(NamedTuple):
    logits: Any
    hidden: Any


@dataclasses.dataclass(frozen=True)
class Data:
    logits: Any
    hidden: Any = None


class Output(collections.OrderedDict[str, Any]):
    """A dict with attributes, as transformers return."""

    def __init__(self, **entries):
        super().__init__()
        for name, value in entries.items():
            self[name] = value

    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        super().__setattr__(name, value)


KINDS = {
    "namedtuple": Named,
    "dataclass": Data,
    "dataclass with None": lambda a, b: Data(a),
    "dict with attributes": lambda a, b: Output(logits=a, hidden=b),
}


def definition_for(make):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            hidden = self.inner(x)
            return make(self.out(hidden), hidden)

    return definition_of(
        Net,
        lambda outputs, labels: functional.cross_entropy(outputs.logits, labels),
        create_metrics=lambda mode: MetricFunctions(
            scalars=lambda out, y: {"right": (out.logits.argmax(1) == y).numpy()}
        ),
    )


def without_a_row(returned, loss):
    class Net(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)

        def forward(self, x):
            return returned(super().forward(x))

    batch = batch_of(8)
    trainer = trainer_of(definition_of(Net, loss), batch)
    assert np.isfinite(trainer.train_steps([batch]).losses).all()
    assert np.isfinite(trainer.evaluate(batch)["loss"][0])
    with pytest.raises(DefinitionError) as refused:
        trainer.predict(batch.features)
    with pytest.raises(DefinitionError, match="reports are written from tensors"):
        trainer.evaluate_per_example(batch)
    return str(refused.value)


def test_a_distribution_trains_and_is_refused_in_prediction_by_its_type():
    message = without_a_row(
        lambda x: torch.distributions.Categorical(logits=x),
        lambda outputs, labels: -outputs.log_prob(labels).mean(),
    )

    kind = "torch.distributions.categorical.Categorical"
    assert message.startswith(f"model.py:1: the model's output is of the type {kind}. ")
    assert "from tuples, lists, dicts and dataclasses of tensors.\n" in message
    assert "return the distribution's parameters as a tuple of tensors" in message


def test_a_number_among_the_outputs_is_refused_in_prediction_by_its_name():
    message = without_a_row(
        lambda x: {"logits": x, "more": (x, 0.5)},
        lambda outputs, labels: functional.cross_entropy(outputs["logits"], labels),
    )

    assert "the model's output 'more_1' is of the type float. " in message
    assert message.endswith("torch.as_tensor(value).")


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_outputs_of_any_type_train_evaluate_and_predict(make):
    definition, batch = definition_for(make), batch_of(12)
    assert_parity(definition, [batch, batch_of(12, 1)])

    trainer = trainer_of(definition)
    predicted = trainer.predict(batch.features)
    logits = predicted["logits"] if isinstance(predicted, dict) else predicted.logits
    examined = trainer.evaluate_per_example(batch)
    right = trainer.evaluation_metrics.results(examined.states)["right"]

    assert logits.shape == (12, 3)
    assert right == np.mean(logits.argmax(1) == batch.labels)
    assert examined.values["loss"].shape == (12,)
    assert all(isinstance(array, np.ndarray) for array in leaves(predicted))


def test_features_may_be_a_namedtuple():
    class Sum(nn.Linear):
        def forward(self, features):
            return super().forward(features.logits + features.hidden)

    plain = batch_of(12)
    batch = Batch(Named(plain.features, plain.features), plain.labels, 12)

    assert_parity(definition_of(lambda: Sum(4, 3)), [batch])


def test_a_namedtuple_stays_a_namedtuple():
    pair = Named(np.zeros((2, 3)), np.ones((2, 1)))
    batch = checked([pair, np.zeros(2)], "It returned")

    assert isinstance(batch.features, Named)
    assert isinstance(map_arrays(np.shape, (pair,))[0], Named)
    assert stack([pair, pair]).logits.shape == (2, 2, 3)


def test_a_string_in_an_output_is_kept():
    class Tells(nn.Linear):
        def forward(self, x):
            return {"logits": super().forward(x), "name": "tells"}

    definition = definition_of(
        lambda: Tells(4, 3), lambda out, y: functional.cross_entropy(out["logits"], y)
    )
    losses = trainer_of(definition).train_steps([batch_of(8)]).losses

    assert torch.isfinite(torch.from_numpy(losses)).all()


class Centered(nn.Module):
    """Looks at the mean of the batch."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(x - x.mean(0))


@pytest.mark.parametrize("size", [6, 8, 32])
def test_two_alternating_records_suffice_to_detect_dependence(size):
    with pytest.raises(DefinitionError, match="depend on the other examples of its batch"):
        trainer_of(definition_of(Centered)).gradients(repeated(batch_of(2), size))


def test_dependence_hidden_by_a_repeated_record_is_detected_later():
    trainer = trainer_of(definition_of(Centered))

    trainer.gradients(repeated(batch_of(1), 8))

    with pytest.raises(DefinitionError, match="depend on the other examples of its batch"):
        trainer.gradients(batch_of(8))


class Fades(nn.Module):
    """Looks at the mean of the batch once its gate is open."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)
        self.register_buffer("gate", torch.zeros(()))

    def forward(self, x):
        return self.out(x - self.gate * x.mean(0))


def test_a_model_that_later_depends_on_its_batch_is_reported_once(caplog):
    trainer = trainer_of(definition_of(Fades))
    for _ in range(2):
        trainer.gradients(batch_of(8))
    trainer.model.gate.fill_(1.0)

    for trainer.step in (3, 32, 64):
        trainer.gradients(batch_of(8))

    (message,) = [each.getMessage() for each in caplog.records]
    assert "since step 32 at the latest" in message
    assert "depend on the other examples of its batch" in message


class CenteredInTraining(nn.Module):
    """Looks at the mean of the batch in training only, and counts its calls."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.calls += 1
            x = x - x.mean(0)
        return self.out(x)


def test_a_mean_over_the_batch_beside_a_counter_is_reported(caplog):
    trainer = trainer_of(definition_of(CenteredInTraining))

    for _ in range(2):
        trainer.gradients(batch_of(8))

    (message,) = [each.getMessage() for each in caplog.records if "statistics" in each.getMessage()]
    assert "in training, an example depends on the other examples of its batch" in message
