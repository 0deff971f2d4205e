"""Metrics of TorchMetrics: carried in one process, added up over workers, or refused by name."""

import numpy as np
import pytest
import torch
import torchmetrics
from tests.training.torch.conftest import batch_of, definition_of, small_model, trainer_of
from tests.training.torch.plain import cut
from torch import nn
from torchmetrics import classification, wrappers

from elasticdl.definition import MetricFunctions, Mode, NamedMetric
from elasticdl.engines.train_progress import states_from_json, states_to_json
from elasticdl.errors import DefinitionError, UserCodeError
from elasticdl.evaluation.metrics import add_states


def classifier():
    return nn.Sequential(small_model(), nn.Softmax(1))


def measuring(**metrics):
    def create_metrics(mode):
        if mode is not Mode.EVALUATION:
            return MetricFunctions()
        return MetricFunctions(
            named=[NamedMetric(name, create()) for name, create in metrics.items()]
        )

    return trainer_of(definition_of(classifier, create_metrics=create_metrics))


def measured(trainer, batches, *, through_json=False):
    """Evaluate batches one after the other, as `evaluation/phase.py` does."""
    total = {}
    for batch in batches:
        states = trainer.evaluate(batch, total)
        total = add_states([total, states], trainer.evaluation_metrics.ordered)
        if through_json:
            total = states_from_json(states_to_json(total))
    return trainer.evaluation_metrics.results(total)


def plain(trainer, metric, batches):
    with torch.no_grad():
        for batch in batches:
            metric.update(trainer.model(torch.tensor(batch.features)), torch.tensor(batch.labels))
    return metric.compute().tolist()


BATCHES = [batch_of(8, seed=1), batch_of(8, seed=2), batch_of(5, seed=3)]


class Largest(torchmetrics.Metric):
    def __init__(self):
        super().__init__()
        self.add_state("value", torch.tensor(0.0), dist_reduce_fx="max")

    def update(self, preds, target):
        self.value = torch.maximum(self.value, preds.max())

    def compute(self):
        return self.value


class Share(torchmetrics.Metric):
    def __init__(self):
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, preds, target):
        self.total += preds.max(1).values.sum()
        self.count += len(target)

    def compute(self):
        return self.total / self.count


class Last(Share):
    """Says "sum", and keeps the last batch."""

    def update(self, preds, target):
        self.total = preds.sum()


class Hides(Share):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def update(self, preds, target):
        self.seen += 1
        super().update(preds, target)


class HidesPrivately(Share):
    def __init__(self):
        super().__init__()
        self._seen = 0

    def update(self, preds, target):
        self._seen += 1
        super().update(preds, target)


SUMS = {
    "accuracy": lambda: classification.MulticlassAccuracy(3),
    "f1": lambda: classification.MulticlassF1Score(3),
    "of_each_class": lambda: classification.MulticlassRecall(3, average=None),
    "auroc": lambda: classification.MulticlassAUROC(3, thresholds=20),
    "own": Share,
    "rounded": lambda: Rounded(Share()),
    "sum_of_two": lambda: (
        classification.MulticlassAccuracy(3) + classification.MulticlassF1Score(3)
    ),
}
CARRIED = {
    "all_predictions": lambda: classification.MulticlassAUROC(3),
    "largest": Largest,
}


@pytest.mark.parametrize("name", [*SUMS, *CARRIED])
@pytest.mark.parametrize("through_json", [False, True])
def test_a_metric_matches_a_plain_loop(name, through_json):
    create = {**SUMS, **CARRIED}[name]
    trainer = measuring(**{name: create})

    found = measured(trainer, BATCHES, through_json=through_json)

    np.testing.assert_array_equal(found[name], plain(trainer, create(), BATCHES))


def test_metrics_are_in_the_order_of_the_file():
    def certainty(labels, outputs):
        return outputs.max(1).values

    trainer = measuring(largest=Largest, certainty=lambda: certainty, own=Share)

    assert list(measured(trainer, BATCHES)) == ["loss", "largest", "certainty", "own"]


@pytest.mark.parametrize("name", SUMS)
def test_states_of_parts_add_up_over_workers(name):
    trainer = measuring(**{name: SUMS[name]})
    trainer.require_sums("several workers")
    parts = [part for batch in BATCHES for part in cut(batch, slice(0, 3), slice(3, None))]

    shares = [trainer.evaluate(part) for part in reversed(parts)]
    found = trainer.evaluation_metrics.results(add_states(shares))

    assert not trainer.evaluation_metrics.ordered
    expected = plain(trainer, SUMS[name](), BATCHES)
    np.testing.assert_allclose(found[name], expected, rtol=1e-6)


REFUSED = {
    "largest": (Largest, "its state 'value' is reduced by max"),
    "auroc": (lambda: classification.MulticlassAUROC(3), "is a list of .*thresholds=200"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_metric_whose_states_do_not_add_up_is_refused_on_workers(name):
    create, why = REFUSED[name]

    with pytest.raises(DefinitionError, match=rf"'{name}' .*do not add up: .*{why}"):
        measuring(**{name: create}).require_sums("several workers")


def test_a_wrongly_declared_sum_is_refused_only_on_workers():
    trainer = measuring(last=Last)
    assert measured(trainer, BATCHES)["last"] == plain(trainer, Last(), BATCHES)

    trainer = measuring(last=Last)
    trainer.require_sums("several workers")
    with pytest.raises(DefinitionError, match=r"'last' \(Last\) declares \"sum\" for its states"):
        trainer.evaluate(BATCHES[0])


def test_a_tested_wrong_sum_is_refused_before_training():
    trainer = measuring(last=Last)
    trainer.check_evaluation(BATCHES[0])

    with pytest.raises(DefinitionError, match=r"'last' \(Last\) declares \"sum\" for its states"):
        trainer.require_sums("several workers")


@pytest.mark.parametrize(("create", "attribute"), [(Hides, "seen"), (HidesPrivately, "_seen")])
def test_metric_attributes_outside_states_are_refused(create, attribute):
    with pytest.raises(DefinitionError, match=rf"'hides' .* keeps .* in self.{attribute}"):
        measuring(hides=create).evaluate(BATCHES[0])


class Recent(torchmetrics.RunningMean):
    def update(self, preds, target):
        super().update((preds.max(1).values - target).abs())


class Rounded(wrappers.transformations.MetricInputTransformer):
    def transform_pred(self, pred):
        return pred.round()


WRAPPERS = {
    "recent": (lambda: Recent(window=2), r"\(Recent\) is a wrapper \(Running\).*\(MeanMetric\)"),
    "least": (
        lambda: torchmetrics.MinMaxMetric(Share()),
        r"\(MinMaxMetric\) is a wrapper .*\(Share\)",
    ),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_that_keeps_values_outside_its_states_is_refused(name):
    create, why = WRAPPERS[name]

    with pytest.raises(DefinitionError, match=rf"the metric '{name}' {why}"):
        measuring(**{name: create})


def test_a_metric_without_a_number_is_refused_before_training():
    curve = measuring(roc=lambda: classification.MulticlassROC(3, thresholds=5))
    with pytest.raises(DefinitionError, match=r"'roc' \(MulticlassROC\) returns a tuple"):
        curve.check_evaluation(BATCHES[0])
    matrix = measuring(matrix=lambda: classification.MulticlassConfusionMatrix(3))
    with pytest.raises(DefinitionError, match=r"returns an array of shape \[3, 3\]"):
        matrix.check_evaluation(BATCHES[0])


def test_several_values_of_a_metric_are_named_after_it():
    trainer = measuring(
        recall=lambda: torchmetrics.ClasswiseWrapper(
            classification.MulticlassRecall(3, average=None), labels=["a", "b", "c"]
        )
    )

    found = measured(trainer, BATCHES)

    assert [name for name in found if name != "loss"] == [
        f"recall_multiclassrecall_{label}" for label in "abc"
    ]


def test_the_better_direction_comes_from_the_metric():
    metrics = measuring(
        f1=SUMS["f1"], own=Share, error=torchmetrics.MeanSquaredError
    ).evaluation_metrics

    assert [metrics.direction(name) for name in ("f1", "own", "error")] == ["max", None, "min"]


def test_an_error_in_compute_names_the_metric_and_line():
    class Fails(Share):
        def compute(self):
            raise ValueError("no such thing")

    line = Fails.compute.__code__.co_firstlineno + 1
    with pytest.raises(UserCodeError, match=rf"test_torchmetrics.py:{line}: compute\(\) .*'fails'"):
        measured(measuring(fails=Fails), BATCHES)


def test_sample_weights_do_not_affect_metrics():
    trainer = measuring(own=Share)
    weighted = [
        type(b)(b.features, b.labels, b.num_examples, np.arange(b.num_examples, dtype="float32"))
        for b in BATCHES
    ]

    assert measured(trainer, weighted)["own"] == measured(trainer, BATCHES)["own"]


def test_lists_of_many_batches_are_not_copied_for_each_batch():
    trainer = measuring(auroc=CARRIED["all_predictions"])
    total = trainer.evaluate(BATCHES[0], {})
    first = total["auroc"][3]
    total = add_states([total], trainer.evaluation_metrics.ordered)

    total = trainer.evaluate(BATCHES[1], total)

    assert total["auroc"][3] is first
