"""Losses and sample weights: equal to a plain loop, here and on workers, or refused by name."""

import numpy as np
import pytest
import torch
from tests.training.torch.conftest import batch_of, definition_of, total_of, trainer_of
from tests.training.torch.plain import UNEVEN, assert_parity, cut
from torch import nn
from torch.nn import functional

from elasticdl.data.batch import Batch
from elasticdl.definition import MetricFunctions, NamedMetric
from elasticdl.errors import DefinitionError, NonFiniteLossError

CLASS_WEIGHTS = torch.tensor([0.2, 1.0, 3.0])


def ignoring(size, seed=0):
    batch = batch_of(size, seed)
    labels = np.where(np.arange(size) % 3 == 1, -100, batch.labels)
    return Batch(batch.features, labels, size)


def regression(size, seed=0):
    batch = batch_of(size, seed)
    return Batch(batch.features, np.random.default_rng(seed).random((size, 3), np.float32), size)


def weighted(batch, seed=5):
    weights = np.random.default_rng(seed).uniform(0, 3, batch.num_examples).astype("float32")
    return Batch(batch.features, batch.labels, batch.num_examples, weights)


def steps(make, num=4):
    return [make(12, seed) for seed in range(num)]


MEANS = {
    "cross entropy": (nn.CrossEntropyLoss(), batch_of),
    "cross entropy, smoothed": (nn.CrossEntropyLoss(label_smoothing=0.1), batch_of),
    "cross entropy, ignored targets": (nn.CrossEntropyLoss(), ignoring),
    "cross entropy, an ignored class": (nn.CrossEntropyLoss(ignore_index=1), batch_of),
    "cross entropy, class weights": (nn.CrossEntropyLoss(CLASS_WEIGHTS), batch_of),
    "cross entropy, class weights and ignored targets": (
        nn.CrossEntropyLoss(CLASS_WEIGHTS, label_smoothing=0.1),
        ignoring,
    ),
    "cross entropy, probabilities": (nn.CrossEntropyLoss(), regression),
    "a function that ignores targets": (
        lambda out, y: functional.cross_entropy(out, y, ignore_index=2),
        batch_of,
    ),
    "nll with class weights": (
        lambda out, y: functional.nll_loss(out.log_softmax(1), y, CLASS_WEIGHTS),
        batch_of,
    ),
    "mse": (nn.MSELoss(), regression),
    "l1": (nn.L1Loss(), regression),
    "smooth l1": (nn.SmoothL1Loss(), regression),
    "huber": (nn.HuberLoss(), regression),
    "bce with logits": (nn.BCEWithLogitsLoss(), regression),
    "bce with logits, positive weights": (
        nn.BCEWithLogitsLoss(pos_weight=CLASS_WEIGHTS),
        regression,
    ),
    "kl, batchmean": (
        lambda out, y: functional.kl_div(out.log_softmax(1), y, reduction="batchmean"),
        regression,
    ),
    "a composed mean": (
        lambda out, y: functional.cross_entropy(out, y) + 0.1 * out.square().mean(),
        batch_of,
    ),
    "one value per example": (
        lambda out, y: functional.cross_entropy(out, y, reduction="none"),
        batch_of,
    ),
}


@pytest.mark.parametrize(("loss", "make"), MEANS.values(), ids=MEANS)
def test_losses_match_a_plain_loop_in_one_process_and_on_workers(loss, make):
    assert_parity(definition_of(loss=loss), steps(make))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_loss_of_time_steps_is_divided_by_unmasked_ones(reduction):
    class Steps(nn.Linear):
        def forward(self, x):
            return super().forward(x).unflatten(1, (3, 2)).movedim(1, 2)

    def make(size, seed=0):
        labels = np.random.default_rng(seed).integers(0, 2, (size, 3))
        labels[np.arange(size) % 4 == 0, 1:] = -100
        return Batch(batch_of(size, seed).features, labels, size)

    loss = nn.CrossEntropyLoss(reduction=reduction)
    assert_parity(definition_of(lambda: Steps(4, 6), loss), steps(make))


def test_the_evaluation_loss_does_not_depend_on_batching():
    batch, trainer = ignoring(12), trainer_of(definition_of(loss=nn.CrossEntropyLoss()))

    whole = trainer.evaluate(batch)["loss"]
    parts = [trainer.evaluate(part)["loss"] for part in cut(batch, *UNEVEN)]

    assert whole[1] == 8
    np.testing.assert_allclose(np.sum(parts, axis=0), whole, rtol=1e-6)


def test_a_worker_with_only_masked_targets_adds_nothing():
    none = Batch(batch_of(2).features, np.array([-100, -100]), 2)
    alone, joined = (trainer_of(definition_of(loss=nn.CrossEntropyLoss())) for _ in "12")
    alone.apply(alone.gradients(batch_of(6))[0])
    contribution, result = joined.gradients(none)
    joined.apply(total_of(contribution, joined.gradients(batch_of(6))[0]))

    np.testing.assert_array_equal(result.metrics["loss"], [0, 0])
    for path, array in alone.state().items():
        np.testing.assert_allclose(joined.state()[path], array, rtol=1e-6)


def test_an_update_with_only_masked_targets_is_refused():
    none = Batch(batch_of(2).features, np.array([-100, -100]), 2)
    trainer = trainer_of(definition_of(loss=nn.CrossEntropyLoss()))

    with pytest.raises(NonFiniteLossError, match="no target of step 1 counts"):
        trainer.apply(trainer.gradients(none)[0])


# --- losses that train in one process only -------------------------------------------------------


def in_batch_negatives(outputs, labels):
    scores = outputs @ functional.one_hot(labels, 3).float().T
    return functional.cross_entropy(scores, torch.arange(len(scores)))


def masked_mean(outputs, labels):
    each = functional.cross_entropy(outputs, labels, reduction="none")
    mask = labels != 0
    return (each * mask).sum() / mask.sum()


def two_terms(outputs, labels):
    return functional.cross_entropy(outputs, labels, ignore_index=0) + outputs.square().mean()


def pairs_only(outputs, labels):
    one, other = outputs.unflatten(0, (6, 2)).unbind(1)
    return (one - other).square().mean()


ALONE = {
    "in-batch negatives": (in_batch_negatives, "depends on which of them share a batch"),
    "a mean over a mask": (masked_mean, "divided by something other than their number"),
    "a sum": (
        lambda out, y: functional.cross_entropy(out, y, reduction="sum"),
        r"It is a sum.* Sums over workers need a loss that is a mean over the batch.*'mean'",
    ),
    "sums of several terms over a constant": (
        lambda out, y: (functional.cross_entropy(out, y, reduction="sum") + out.abs().sum()) / 8,
        r"divided by a constant.* divide the sum by the number of examples, len\(labels\)",
    ),
    "ignored targets and another term": (two_terms, r"the loss has cross_entropy\(\) in it"),
}


@pytest.mark.parametrize(("loss", "why"), ALONE.values(), ids=ALONE)
def test_a_loss_that_is_not_a_mean_is_refused_in_sums(loss, why):
    definition, batches = definition_of(loss=loss), steps(batch_of)
    losses, _ = (trainer_of(definition).train_steps(batches).losses, None)
    assert np.isfinite(losses).all()

    with pytest.raises(DefinitionError, match=why):
        trainer_of(definition).gradients(batches[0])


def test_a_mask_that_is_full_at_first_is_detected_later():
    full, later = batch_of(12), batch_of(12, 1)
    full.labels[:] = 1
    trainer = trainer_of(definition_of(loss=masked_mean))
    for _ in range(9):
        trainer.gradients(full)

    with pytest.raises(DefinitionError, match="divided by something other"):
        trainer.gradients(later)


def labels_that_are_there(outputs, labels):
    there = labels >= 0
    return ((outputs - labels).square() * there).sum() / there.sum()


def test_batches_of_one_example_are_compared_with_the_one_before():
    whole, rare = np.float32([[1, 2, 3]]), np.float32([[1, -1, -1]])
    batches = [Batch(batch_of(1, seed).features, whole, 1) for seed in range(6)]
    trainer = trainer_of(definition_of(loss=labels_that_are_there), batches[0])
    for batch in batches:
        trainer.gradients(batch)

    with pytest.raises(DefinitionError, match="divided by something other"):
        trainer.gradients(Batch(batch_of(1, 7).features, rare, 1))


def test_a_loss_that_fails_on_a_part_is_refused_by_name():
    with pytest.raises(DefinitionError, match="cannot be computed separately for its first 4"):
        trainer_of(definition_of(loss=pairs_only)).gradients(batch_of(12))


def test_batch_dependent_outputs_are_refused_in_sums():
    class Centred(nn.Linear):
        def forward(self, x):
            return super().forward(x - x.mean(0))

    trainer = trainer_of(definition_of(lambda: Centred(4, 3)))
    trainer.train_steps([batch_of(12)])

    with pytest.raises(DefinitionError, match="the model's outputs for an example depend on"):
        trainer.gradients(batch_of(12))


def test_a_loss_with_its_own_parameters_is_refused():
    class Learned(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, outputs, labels):
            return functional.cross_entropy(outputs * self.scale, labels)

    for loss in (Learned(), Learned().forward):
        with pytest.raises(DefinitionError, match=r"Learned has parameters of its own \(scale\)"):
            trainer_of(definition_of(loss=loss))


# --- sample weights ------------------------------------------------------------------------------


def by_hand(values):
    """Return Keras' definition: sum(w x l) / number of values of the loss."""

    def loss(outputs, labels, weights):
        each = values(outputs, labels)
        return (each * weights.reshape(-1, *[1] * (each.ndim - 1))).mean()

    return loss


def cross_entropies(outputs, labels):
    return functional.cross_entropy(outputs, labels, reduction="none")


WEIGHTED = {
    "one value per example": (cross_entropies, batch_of, cross_entropies),
    "a loss of torch.nn": (nn.CrossEntropyLoss(), batch_of, cross_entropies),
    "a function that returns one of PyTorch's": (
        lambda out, y: functional.cross_entropy(out, y, reduction="mean"),
        batch_of,
        cross_entropies,
    ),
    "several values an example": (
        nn.MSELoss(),
        regression,
        lambda out, y: functional.mse_loss(out, y, reduction="none"),
    ),
    "bce": (
        nn.BCEWithLogitsLoss(),
        regression,
        lambda out, y: functional.binary_cross_entropy_with_logits(out, y, reduction="none"),
    ),
}


@pytest.mark.parametrize(("loss", "make", "values"), WEIGHTED.values(), ids=WEIGHTED)
def test_sample_weights_multiply_the_losses_of_examples(loss, make, values):
    batches = [weighted(batch, i) for i, batch in enumerate(steps(make))]

    assert_parity(definition_of(loss=loss), batches, by_hand(values))


def test_sample_weights_of_one_change_nothing():
    batch = batch_of(12)
    ones = Batch(batch.features, batch.labels, 12, np.ones(12, np.float32))
    one, other = (trainer_of(definition_of(loss=nn.CrossEntropyLoss())) for _ in "12")
    losses = [one.train_steps([batch]).losses, other.train_steps([ones]).losses]

    np.testing.assert_allclose(*losses, rtol=1e-6)


def right(labels, outputs):
    return outputs.argmax(1) == labels


def test_weighted_metrics_are_divided_by_the_sum_of_the_weights():
    definition = definition_of(
        loss=nn.CrossEntropyLoss(),
        create_metrics=lambda mode: MetricFunctions(
            scalars=lambda out, y: {"scalar": right(y, out)}, named=[NamedMetric("named", right)]
        ),
    )
    batch, trainer = weighted(batch_of(12)), trainer_of(definition)
    hits = trainer.predict(batch.features).argmax(1) == batch.labels
    expected = (hits * batch.weights).sum() / batch.weights.sum()
    logits, labels = map(torch.from_numpy, (trainer.predict(batch.features), batch.labels))
    each = cross_entropies(logits, labels).numpy()

    for states in (
        trainer.evaluate(batch),
        trainer.evaluate_per_example(batch).states,
        trainer.train_steps([batch]).metrics,
    ):
        results = trainer.evaluation_metrics.results(states)
        assert results["scalar"] == results["named"] == pytest.approx(expected)
        assert results["loss"] == pytest.approx(float((each * batch.weights).mean()), rel=1e-5)
    examined = trainer_of(definition).evaluate_per_example(batch).values["loss"]
    np.testing.assert_allclose(examined, each * batch.weights, rtol=1e-5)


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (lambda out, y: cross_entropies(out, y).mean(), "the loss is one number for the batch"),
        (nn.CrossEntropyLoss(CLASS_WEIGHTS), "the loss has class weights or ignored targets"),
        (nn.CrossEntropyLoss(ignore_index=1), "the loss has class weights or ignored targets"),
    ],
)
def test_a_loss_that_cannot_be_weighted_is_refused_with_the_remedy(loss, why):
    trainer = trainer_of(definition_of(loss=loss))
    for use in (lambda b: trainer.train_steps([b]), trainer.gradients, trainer.evaluate):
        with pytest.raises(DefinitionError, match=why):
            use(weighted(batch_of(12)))


def test_a_metric_of_the_batch_cannot_be_weighted():
    definition = definition_of(
        loss=nn.CrossEntropyLoss(),
        create_metrics=lambda mode: MetricFunctions(
            scalars=lambda out, y: {"accuracy": right(y, out).float().mean()}
        ),
    )
    with pytest.raises(DefinitionError, match=r"'accuracy' is of shape \[\]"):
        trainer_of(definition).evaluate(weighted(batch_of(12)))


def test_a_metric_called_loss_is_refused():
    for functions in (
        MetricFunctions(scalars=lambda out, y: {"loss": 7.0}),
        MetricFunctions(named=[NamedMetric("loss", right)]),
    ):
        definition = definition_of(create_metrics=lambda mode, f=functions: f)
        with pytest.raises(DefinitionError, match="a metric is named 'loss'"):
            trainer_of(definition).evaluate(batch_of(8))
