"""Every metric of Keras: its states add up, and it says what Keras' own evaluate says."""

import inspect

import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.definition import MetricFunctions, ModelDefinition, NamedMetric, Origin, RecordInput
from elasticdl.evaluation.metrics import add_states

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")
CLASSES = 3
# Name -> (what its constructor needs, the labels it takes).
ARGUMENTS = {
    "AUC": [
        ({}, "binary"),
        ({"num_thresholds": 7, "curve": "PR"}, "binary"),
        ({"multi_label": True, "num_labels": CLASSES}, "one-hot"),
    ],
    "BinaryIoU": [({}, "binary")],
    "ConcordanceCorrelation": [({}, "real")],
    "F1Score": [({}, "one-hot"), ({"average": "macro"}, "one-hot")],
    "FBetaScore": [({"average": "weighted", "beta": 2.0}, "one-hot"), ({}, "one-hot")],
    "IoU": [({"num_classes": 2, "target_class_ids": [0]}, "binary")],
    "MeanIoU": [({"num_classes": 2}, "binary")],
    "OneHotIoU": [({"num_classes": CLASSES, "target_class_ids": [0, 2]}, "one-hot")],
    "OneHotMeanIoU": [({"num_classes": CLASSES}, "one-hot")],
    "Precision": [({}, "binary"), ({"thresholds": [0.2, 0.7], "class_id": 1}, "one-hot")],
    "PrecisionAtRecall": [({"recall": 0.5}, "binary")],
    "PearsonCorrelation": [({}, "real")],
    "R2Score": [({}, "real"), ({"class_aggregation": "variance_weighted_average"}, "real")],
    "Recall": [({}, "binary"), ({"top_k": 2}, "one-hot")],
    "RecallAtPrecision": [({"precision": 0.5}, "binary")],
    "SensitivityAtSpecificity": [({"specificity": 0.5}, "binary")],
    "SparseCategoricalAccuracy": [({}, "classes")],
    "SparseCategoricalCrossentropy": [({}, "classes")],
    "SparseTopKCategoricalAccuracy": [({"k": 2}, "classes")],
    "SpecificityAtSensitivity": [({"sensitivity": 0.5}, "binary")],
    "TopKCategoricalAccuracy": [({"k": 2}, "one-hot")],
}
BINARY = [
    "BinaryAccuracy",
    "BinaryCrossentropy",
    "FalseNegatives",
    "FalsePositives",
    "TrueNegatives",
    "TruePositives",
]
REAL = [
    "Accuracy",
    "CosineSimilarity",
    "Hinge",
    "KLDivergence",
    "LogCoshError",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanSquaredError",
    "MeanSquaredLogarithmicError",
    "Poisson",
    "RootMeanSquaredError",
    "SquaredHinge",
]
ONE_HOT = ["CategoricalAccuracy", "CategoricalCrossentropy", "CategoricalHinge"]
ARGUMENTS |= {name: [({}, "binary")] for name in BINARY}
ARGUMENTS |= {name: [({}, "real")] for name in REAL}
ARGUMENTS |= {name: [({}, "one-hot")] for name in ONE_HOT}
# They take values, not labels and predictions, so only layers can have them.
OF_VALUES = {"Mean", "Sum"}
# The bases, and what needs a function.
BASES = {"Metric", "MeanMetricWrapper"}
CATALOGUE = [
    pytest.param(name, options, labels, id=f"{name} {options or ''}")
    for name, cases in sorted(ARGUMENTS.items())
    for options, labels in cases
]


def test_the_table_has_all_keras_metrics():
    import keras

    kinds = {kind.__name__ for kind in vars(keras.metrics).values() if inspect.isclass(kind)}

    assert kinds == ARGUMENTS.keys() | OF_VALUES | BASES


def batches(labels):
    """Return batches of 5, 5 and 3 examples, which have no two labels or features alike."""
    rng = np.random.default_rng(4)
    for size in (5, 5, 3):
        x = rng.uniform(0.05, 1, (size, CLASSES)).astype("float32")
        y = rng.integers(0, CLASSES, size)
        made = {
            "binary": rng.integers(0, 2, (size, CLASSES)).astype("float32"),
            "one-hot": np.eye(CLASSES, dtype="float32")[y],
            "classes": y[:, None],
            "real": (x + rng.uniform(0, 0.3, x.shape)).astype("float32"),
        }
        yield Batch(x / x.sum(1, keepdims=True), made[labels], size)


@pytest.mark.parametrize(("name", "options", "labels"), CATALOGUE)
def test_keras_metrics_add_up_and_match_evaluate(name, options, labels):
    import keras

    from elasticdl.training.keras import KerasTrainer

    def model():
        # Says what it is given: of metrics only the states are looked at.
        return keras.Sequential([keras.Input((CLASSES,)), keras.layers.Activation("linear")])

    def metric():
        return getattr(keras.metrics, name)(**options, name="it")

    some = list(batches(labels))
    functions = MetricFunctions(named=[NamedMetric("it", metric())])
    definition = ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=model,
        input=RecordInput(lambda records: records),
        loss=lambda outputs, labels: keras.ops.mean(outputs),
        create_optimizer=lambda: keras.optimizers.SGD(0.0),
        create_metrics=lambda mode: functions,
    )
    trainer = KerasTrainer(definition, some[0], minibatch_size=5)
    # To compile would take longer than all else, and compiled steps have tests of their own.
    trainer._functions.is_eager = True
    # As if it were the user's own: the table of those that need not be tried is shown to be right.
    variables = trainer.evaluation_metrics.variables
    variables.unproved = {"it"}
    trainer._metric_probe.on(some[0], trainer.evaluation_metrics)
    assert not variables.failures
    variables.unproved = set()
    variables.require_sums("workers")

    reference = model()
    reference.compile(metrics=[metric()], loss=lambda y, out: keras.ops.mean(out), run_eagerly=True)
    theirs = reference.evaluate(
        ((b.features, b.labels) for b in some), steps=3, verbose=0, return_dict=True
    )

    states = add_states([trainer.evaluate(batch) for batch in some])
    ours = trainer.evaluation_metrics.results(states)
    np.testing.assert_allclose(ours["it"], np.asarray(theirs["it"]), rtol=1e-5, atol=1e-6)
