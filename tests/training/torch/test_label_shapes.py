"""Outputs [n, 1] and labels [n], or the reverse, broadcast to [n, n] in a difference."""

import numpy as np
import pytest
import torch
from torch import nn

from elasticdl.data.batch import Batch
from elasticdl.definition import (
    MetricFunctions,
    Mode,
    ModelDefinition,
    NamedMetric,
    Origin,
    RecordInput,
)
from elasticdl.training.torch import TorchTrainer

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")
NUM_EXAMPLES = 8


class Squeezed(nn.Linear):
    def forward(self, x):
        return super().forward(x).squeeze(-1)


def squares(outputs, labels):
    return ((outputs - labels) ** 2).mean()


def squeezing(outputs, labels):
    return ((outputs.reshape(-1) - labels.reshape(-1)) ** 2).mean()


def of_pairs(outputs, labels):
    outputs, labels = outputs.reshape(-1, 1), labels.reshape(-1, 1)
    return ((outputs - outputs.T - (labels - labels.T)) ** 2).mean()


def of_flat_pairs(outputs, labels):
    return ((outputs - outputs.T - (labels[:, None] - labels[None, :])) ** 2).mean()


def absolute(labels, outputs):
    return (outputs - labels).abs()


def train(loss, labels, *, kind=nn.Linear, metric=None, is_default=True):
    """Train two steps; return the losses, the last metric and the weights."""

    def create_model():
        torch.manual_seed(0)
        return kind(4, 1)

    named = [NamedMetric("absolute", metric)] if metric else []
    definition = ModelDefinition(
        origin=ORIGIN,
        framework="torch",
        create_model=create_model,
        input=RecordInput(lambda records: records, is_default=is_default),
        loss=loss,
        create_optimizer=lambda: lambda parameters, _model: torch.optim.SGD(parameters, lr=0.1),
        create_metrics=lambda mode: MetricFunctions(named=named if mode is Mode.EVALUATION else []),
    )
    features = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 4)).astype(np.float32)
    batch = Batch(features, labels, NUM_EXAMPLES)
    trainer = TorchTrainer(definition, batch, minibatch_size=NUM_EXAMPLES)
    losses = [*trainer.train_steps([batch]).losses, *trainer.train_steps([batch]).losses]
    measured = trainer.evaluation_metrics.results(trainer.evaluate(batch))
    return losses, measured.get("absolute"), trainer.model.weight.detach().numpy()


@pytest.mark.parametrize(
    ("loss", "dtype"),
    [
        (squares, np.float32),
        (squares, np.int64),
        (nn.MSELoss(), np.float32),
        (nn.MSELoss(), np.int64),
        (nn.HuberLoss(), np.float32),
    ],
)
@pytest.mark.parametrize("kind", [nn.Linear, Squeezed])
@pytest.mark.filterwarnings("error:Using a target size")
def test_labels_of_the_default_input_get_the_shape_of_the_outputs(kind, loss, dtype):
    flat = np.arange(NUM_EXAMPLES).astype(dtype)
    given, right = (flat, flat[:, None]) if kind is nn.Linear else (flat[:, None], flat)
    expected = train(loss, right, kind=kind, metric=absolute)

    found = train(loss, given, kind=kind, metric=absolute)

    assert found[0] == expected[0]
    assert found[1] == expected[1]
    np.testing.assert_array_equal(found[2], expected[2])


@pytest.mark.parametrize("loss", [squeezing, of_pairs])
def test_a_loss_that_is_right_with_any_shape_keeps_the_labels(loss):
    labels = np.arange(NUM_EXAMPLES, dtype=np.float32)

    np.testing.assert_allclose(train(loss, labels)[0], train(loss, labels[:, None])[0], rtol=1e-6)


def test_a_loss_that_compares_pairs_of_flat_labels_keeps_them():
    labels = np.arange(NUM_EXAMPLES, dtype=np.float32)

    assert train(of_flat_pairs, labels)[0] == train(of_pairs, labels)[0]


def test_a_cross_entropy_with_logits_gets_labels_without_an_axis_that_outputs_do_not_have():
    labels = np.float32(np.arange(NUM_EXAMPLES) % 2)

    found = train(nn.BCEWithLogitsLoss(), labels[:, None], kind=Squeezed)

    assert found[0] == train(nn.BCEWithLogitsLoss(), labels, kind=Squeezed)[0]


def test_labels_of_an_input_function_keep_their_shape_with_a_warning(caplog):
    labels = np.arange(NUM_EXAMPLES, dtype=np.float32)

    found = train(squares, labels, metric=absolute, is_default=False)

    assert found[0][0] != pytest.approx(train(squares, labels)[0][0])
    messages = [r.getMessage() for r in caplog.records if "[n, n]" in r.getMessage()]
    assert [text.partition(", so ")[2].partition(" broadcasts")[0] for text in messages] == [
        "the loss",
        "the metric 'absolute'",
    ]


def test_a_metric_of_torchmetrics_gets_labels_in_the_shape_of_the_outputs():
    torchmetrics = pytest.importorskip("torchmetrics")
    labels = np.arange(NUM_EXAMPLES, dtype=np.float32)

    found = train(squares, labels, metric=torchmetrics.MeanAbsoluteError())

    expected = train(squares, labels[:, None], metric=torchmetrics.MeanAbsoluteError())
    assert found[1] == pytest.approx(expected[1])
