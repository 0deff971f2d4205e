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
from elasticdl.errors import UserCodeError
from elasticdl.training.torch import TorchTrainer
from elasticdl.training.torch.label_shapes import TorchLabelShape

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
        loss_within="forward" if loss is None else "",
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


@pytest.mark.parametrize("loss", [squares, nn.MSELoss(), nn.MultiLabelSoftMarginLoss()])
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_flat_labels_are_not_compared_with_several_values_of_their_example(loss):
    """As in a plain script: the loss raises."""
    labels = np.arange(NUM_EXAMPLES) % 3

    with pytest.raises(UserCodeError, match="must match the size|same shape|size of tensor"):
        train(loss, labels, kind=lambda *size: Several(*size, "mixture"))


def test_flat_labels_get_the_shape_of_a_part_of_the_output():
    def of_parts(outputs, labels):
        mean, variance = outputs[:, :1], nn.functional.softplus(outputs[:, 1:2])
        return nn.functional.gaussian_nll_loss(mean, labels, variance)

    labels = np.arange(NUM_EXAMPLES)

    def several(*size):
        return Several(*size, "mixture")

    assert (
        train(of_parts, labels, kind=several)[0]
        == train(of_parts, labels[:, None], kind=several)[0]
    )


def test_labels_of_an_input_function_keep_their_shape_with_a_warning(caplog):
    labels = np.arange(NUM_EXAMPLES, dtype=np.float32)

    found = train(squares, labels, metric=absolute, is_default=False)

    assert found[0][0] != pytest.approx(train(squares, labels)[0][0])
    messages = [r.getMessage() for r in caplog.records if "[n, n]" in r.getMessage()]
    assert [text.partition("[n], and ")[2].partition(" broadcasts")[0] for text in messages] == [
        "the loss",
        "the metric 'absolute'",
    ]


def test_a_metric_of_torchmetrics_gets_labels_in_the_shape_of_the_outputs():
    torchmetrics = pytest.importorskip("torchmetrics")
    labels = np.arange(NUM_EXAMPLES, dtype=np.float32)

    found = train(squares, labels, metric=torchmetrics.MeanAbsoluteError())

    expected = train(squares, labels[:, None], metric=torchmetrics.MeanAbsoluteError())
    assert found[1] == pytest.approx(expected[1])


class Several(nn.Linear):
    """A model of a mean and a variance, or of a mixture of two normal distributions."""

    def __init__(self, num_inputs, num_outputs, kind):
        super().__init__(num_inputs, 6)
        self.kind = kind

    def forward(self, x):
        outputs = super().forward(x)
        if self.kind == "tuple":
            return outputs[:, 0], nn.functional.softplus(outputs[:, 1])
        if self.kind == "dict":
            return {"mean": outputs[:, 0], "variance": nn.functional.softplus(outputs[:, 1])}
        return outputs


def of_normal(outputs, labels):
    mean, variance = outputs.values() if isinstance(outputs, dict) else outputs
    return nn.functional.gaussian_nll_loss(mean, labels, variance)


def of_mixture(outputs, labels):
    scores, means, scales = outputs.chunk(3, dim=1)
    mixture = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(logits=scores),
        torch.distributions.Normal(means, nn.functional.softplus(scales)),
    )
    return -mixture.log_prob(labels).mean()


def of_mean(labels, outputs):
    mean = outputs["mean"] if isinstance(outputs, dict) else outputs[0]
    return (mean - labels).abs()


@pytest.mark.parametrize(
    ("kind", "loss", "metric"),
    [("tuple", of_normal, of_mean), ("dict", of_normal, of_mean), ("mixture", of_mixture, None)],
)
def test_labels_fit_models_with_several_outputs_or_parameters(kind, loss, metric):
    flat = np.float32(np.arange(NUM_EXAMPLES) / 4)

    def several(*size):
        return Several(*size, kind)

    expected = train(loss, flat, kind=several, metric=metric, is_default=False)

    found = train(loss, flat[:, None], kind=several, metric=metric)

    assert found[:2] == expected[:2]
    np.testing.assert_array_equal(found[2], expected[2])


class Inner(nn.Linear):
    def forward(self, x, labels=None):
        scores = super().forward(x).squeeze(-1)
        if labels is None:
            return {"scores": scores}
        return {"loss": ((scores - labels) ** 2).mean(), "scores": scores}


def test_labels_fit_a_model_that_computes_its_own_loss():
    flat = np.float32(np.arange(NUM_EXAMPLES))

    def error(labels, outputs):
        return (outputs["scores"] - labels).abs()

    expected = train(None, flat, kind=Inner, metric=error, is_default=False)

    found = train(None, flat[:, None], kind=Inner, metric=error)

    assert found[:2] == expected[:2]
    np.testing.assert_array_equal(found[2], expected[2])


@pytest.mark.parametrize("width", [11, 13])
def test_an_axis_as_long_as_the_tried_batch_is_not_taken_for_pairs(width):
    def of_wide(outputs, labels):
        return ((outputs[0] - labels) ** 2).mean() + torch.ones(width, width).mean()

    def several(*size):
        return Several(*size, "tuple")

    flat = np.float32(np.arange(NUM_EXAMPLES))
    expected = train(of_wide, flat, kind=several, is_default=False)

    assert train(of_wide, flat[:, None], kind=several)[0] == expected[0]


def test_a_loss_that_compares_labels_with_each_other_keeps_them():
    shapes = []

    def partial_likelihood(outputs, times):
        shapes.append(tuple(times.shape))
        risk = outputs[0]
        is_at_risk = (times >= times.T).float()
        return (torch.log(is_at_risk @ risk.exp()) - risk).mean()

    def several(*size):
        return Several(*size, "tuple")

    train(partial_likelihood, np.float32(np.arange(NUM_EXAMPLES))[:, None], kind=several)

    assert shapes[-1] == (NUM_EXAMPLES, 1)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, outputs, labels):
        self.count += 1
        return nn.functional.mse_loss(outputs[0], labels)


def test_the_state_of_a_loss_does_not_change_while_the_shape_is_found():
    shape = TorchLabelShape("model.py:1", "the loss", may_reshape=True)
    loss, outputs = Counting(), (torch.zeros(2), torch.zeros(2))

    shape.find(loss, outputs, torch.zeros(2, 1))

    assert shape.reshapes
    assert loss.count == 0


def train_three(loss, labels, *, is_default=True):
    def several(*size):
        return nn.Linear(size[0], 3)

    return train(loss, labels, kind=several, is_default=is_default)


def spread_notes(caplog):
    return [r.getMessage() for r in caplog.records if "all 3 outputs" in r.getMessage()]


def of_quantiles(outputs, labels):
    errors = labels - outputs
    return torch.maximum(0.1 * errors, -0.9 * errors).mean()


LABELS = np.linspace(0, 1, NUM_EXAMPLES, dtype=np.float32)


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("loss", [squares, of_quantiles, nn.MSELoss(), nn.L1Loss(reduction="none")])
def test_a_loss_that_compares_one_label_with_several_outputs_causes_one_warning(loss, caplog):
    train_three(loss, LABELS[:, None])

    (note,) = spread_notes(caplog)
    assert note.startswith("model.py:1: the loss compares each label with all 3 outputs")
    assert "[batch, 1], the outputs [batch, 3]" in note


@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, labels: squares(outputs[:, :1], labels),
        lambda outputs, labels: squares(outputs, labels.expand_as(outputs)),
        lambda outputs, labels: (outputs * (labels > 0)).mean(),
        lambda outputs, labels: nn.functional.cross_entropy(outputs, labels[:, 0].long()),
    ],
)
def test_labels_that_are_not_broadcast_by_accident_cause_no_warning(loss, caplog):
    train_three(loss, LABELS[:, None])

    assert not spread_notes(caplog)


def test_labels_with_a_column_for_each_output_cause_no_warning(caplog):
    train_three(squares, np.tile(LABELS[:, None], 3))

    assert not spread_notes(caplog)


def test_the_shape_of_labels_of_an_input_function_is_not_questioned(caplog):
    train_three(squares, LABELS[:, None], is_default=False)

    assert not spread_notes(caplog)
