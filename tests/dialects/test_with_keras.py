"""With Keras itself: names stand for its objects, and a definition trains."""

from __future__ import annotations

import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.definition import Mode
from elasticdl.errors import DefinitionError

keras = pytest.importorskip("keras")
keras_copies = pytest.importorskip("elasticdl.dialects.keras_copies")

CLASS = """
import keras

class Mine(keras.Model):
    default_loss = "mse"
    default_optimizer = "sgd"
    default_metrics = ["accuracy", "mae", keras.metrics.AUC()]

    def __init__(self, units: int = 1):
        super().__init__()
        self.dense = keras.layers.Dense(units)

    def call(self, x):
        return self.dense(x)

    def default_input(records):
        return records
"""

MODULE = """
import keras

inputs = keras.Input((2,), name="x")
model = keras.Model(inputs, keras.layers.Dense(1)(inputs))

def input_fn(records): ...

def loss({arguments}):
    # Asymmetric: in the wrong order its minimum is elsewhere.
    return keras.ops.mean(keras.ops.square(outputs - 2.0 * labels))

optimizer = keras.optimizers.SGD(0.1)
"""


def test_keras_names_resolve_to_its_objects(define) -> None:
    definition = define(CLASS, "m.Mine")

    assert isinstance(definition.create_optimizer(), keras.optimizers.SGD)
    assert definition.create_optimizer() is not definition.create_optimizer()
    outputs, labels = np.float32([[1.0], [2.0]]), np.float32([[1.0], [4.0]])
    np.testing.assert_allclose(definition.loss(outputs, labels), 2.0)
    accuracy, mae, auc = definition.create_metrics(Mode.TRAINING).named
    assert [accuracy.name, mae.name, auc.name[:3]] == ["accuracy", "mae", "auc"]
    assert isinstance(mae.metric, keras.metrics.MeanAbsoluteError)
    assert isinstance(auc.metric, keras.metrics.AUC)
    assert auc.metric is not definition.create_metrics(Mode.TRAINING).named[2].metric


@pytest.mark.parametrize("name", ["accuracy", "acc", "Accuracy"])
def test_the_name_of_an_accuracy_means_that_high_values_are_better(define, name) -> None:
    metrics = define(CLASS.replace('"accuracy"', repr(name)), "m.Mine").create_metrics(
        Mode.TRAINING
    )

    assert [metric.direction for metric in metrics.named] == ["max", None, None]


def test_lower_values_of_a_loss_function_of_keras_are_better(define) -> None:
    source = CLASS.replace('"accuracy"', "keras.losses.log_cosh, keras.metrics.binary_accuracy")

    metrics = define(source, "m.Mine").create_metrics(Mode.TRAINING)

    assert [metric.direction for metric in metrics.named[:2]] == ["min", None]


@pytest.mark.parametrize(
    ("labels", "outputs"),
    [
        ([1, 0], [[0.1, 0.9], [0.2, 0.8]]),
        ([[1], [0]], [[0.1, 0.9], [0.2, 0.8]]),
        ([[0, 1], [1, 0]], [[0.1, 0.9], [0.2, 0.8]]),
        ([[1], [0]], [[0.9], [0.8]]),
    ],
)
def test_accuracy_depends_on_the_shapes(define, labels, outputs) -> None:
    accuracy = define(CLASS, "m.Mine").create_metrics(Mode.TRAINING).named[0].metric

    values = accuracy(np.array(labels), np.float32(outputs))

    np.testing.assert_array_equal(np.ravel(values), [1.0, 0.0])


@pytest.mark.parametrize(
    ("piece", "name", "near"), [("loss", "mce", "mse"), ("optimizer", "sgdd", "SGD")]
)
def test_an_unknown_name_is_reported_with_a_similar_one(refused, piece, name, near) -> None:
    good = {"loss": "mse", "optimizer": "sgd"}[piece]
    text = CLASS.replace(f'default_{piece} = "{good}"', f'default_{piece} = "{name}"')

    message = refused(text, DefinitionError, model_def="m.Mine")

    assert f"has no {name!r}. Did you mean" in message
    assert near.lower() in message.lower()


@pytest.mark.parametrize("name", ["crossentropy", "CE"])
def test_a_crossentropy_of_unclear_kind_is_refused_with_the_three_kinds(refused, name) -> None:
    text = CLASS.replace('default_loss = "mse"', f'default_loss = "{name}"')

    message = refused(text, DefinitionError, model_def="m.Mine")

    assert f"{name!r} depends on the shape of the labels in Keras. Name one: sparse_" in message
    assert "Did you mean" not in message


def test_params_of_a_keras_class_are_those_of_its_constructor(define, refused) -> None:
    from elasticdl.errors import UsageError

    assert define(CLASS, "m.Mine", params={"units": 3}).create_model().dense.units == 3
    assert "Did you mean 'units'?" in refused(
        CLASS, UsageError, model_def="m.Mine", params={"unit": 3}
    )


@pytest.mark.parametrize("arguments", ["labels, outputs", "outputs, labels"])
def test_a_definition_trains_to_the_minimum_of_its_loss(define, arguments) -> None:
    from elasticdl.training.keras.trainer import KerasTrainer

    definition = define(MODULE.replace("{arguments}", arguments))
    features = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    batch = Batch({"x": features}, features.sum(axis=1, keepdims=True), 64)
    trainer = KerasTrainer(definition, batch, minibatch_size=64, seed=1)

    for _ in range(60):
        trainer.train_steps([batch])

    np.testing.assert_allclose(trainer.model.get_weights()[0], [[2.0], [2.0]], atol=1e-2)


def test_two_runs_of_one_definition_are_identical(define) -> None:
    from elasticdl.training.keras.trainer import KerasTrainer

    definition = define(MODULE.replace("{arguments}", "outputs, labels"))
    batch = Batch({"x": np.ones((4, 2), np.float32)}, np.ones((4, 1), np.float32), 4)
    states = []
    for _ in range(2):
        trainer = KerasTrainer(definition, batch, minibatch_size=4, seed=3)
        trainer.train_steps([batch, batch])
        states.append(trainer.state())

    first, second = states
    assert list(first) == list(second)
    for path in first:
        np.testing.assert_array_equal(first[path], second[path])


def test_a_keras_loss_gets_labels_in_the_same_shape_as_with_compile(define) -> None:
    text = CLASS.replace('"mse"', '"binary_crossentropy"')
    outputs, labels = np.float32([[0.5], [0.5]]), np.int64([0, 1])

    np.testing.assert_allclose(define(text, "m.Mine").loss(outputs, labels), np.log(2), rtol=1e-5)


WEIGHTED = MODULE.format(arguments="labels, outputs").replace(
    "def input_fn(records): ...",
    """
import numpy as np

def input_fn(records):
    return np.ones((3, 2), "float32"), np.array([0, 1, 1]), np.float32([1, 1, 2])

{class_weight}

def weighted_metrics_fn():
    return {{"mae": "mae"}}
""",
)


def batch_of(definition, mode):
    from elasticdl.engines.input_calls import make_batch

    return make_batch(definition, definition.input, [{}] * 3, mode, "here")


@pytest.mark.parametrize(
    "written",
    ["class_weight = {1: 5.0}", "def class_weight(rare: float = 5.0):\n    return {1: rare}"],
)
def test_class_weights_multiply_sample_weights_only_in_training(define, written) -> None:
    definition = define(WEIGHTED.format(class_weight=written))

    trained, evaluated = (batch_of(definition, m) for m in (Mode.TRAINING, Mode.EVALUATION))

    np.testing.assert_array_equal(trained.weights, [1, 5, 10])
    np.testing.assert_array_equal(evaluated.weights, [1, 1, 2])


def test_class_weights_keyed_by_names_are_refused_with_their_line(define) -> None:
    with pytest.raises(DefinitionError, match=r"m.py:\d+: class_weight has the key 'rare'"):
        define(WEIGHTED.format(class_weight='class_weight = {"rare": 5.0}'))


def test_weighted_metrics_use_sample_weights(define) -> None:
    definition = define(WEIGHTED.format(class_weight=""))

    (mae,) = definition.create_metrics(Mode.EVALUATION).named
    assert (mae.name, mae.weighted) == ("mae", True)
    assert not definition.create_metrics(Mode.TRAINING).named


def test_a_keras_class_may_define_class_weights_and_weighted_metrics(define) -> None:
    more = """    default_weighted_metrics = ["mae"]

    def default_class_weight(self):
        return {0: 2.0}
"""
    definition = define(CLASS + more, "m.Mine")

    named = definition.create_metrics(Mode.EVALUATION).named
    assert [(each.name, each.weighted) for each in named][1:2] == [("mae", False)]
    assert (named[-1].name, named[-1].weighted) == ("weighted_mae", True)
    assert definition.class_weight is not None
    assert definition.class_weight() == {0: 2.0}


OBJECTS = """
import keras

class Scaled(keras.metrics.Metric):
    def __init__(self, factor=1.0, function=abs, **more):
        super().__init__(**more)
        self.factor, self.function = factor, function
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(self.factor)

    def result(self):
        return self.total

def custom_model(): ...
def input_fn(records): ...
def loss(labels, predictions): ...

optimizer = keras.optimizers.AdamW(0.1)
optimizer.exclude_from_weight_decay(var_names=["bias"])
optimizer.iterations.assign(7)
eval_metrics_fn = [Scaled(factor=100.0, function={function})]
"""


def test_a_copy_of_an_object_in_the_file_has_what_its_config_lacks(define) -> None:
    definition = define(OBJECTS.format(function="abs"), "m.custom_model")

    optimizer = definition.create_optimizer()
    optimizer.build([keras.Variable(1.0, name="kernel"), keras.Variable(1.0, name="bias")])
    (metric,) = (named.metric for named in definition.create_metrics(Mode.EVALUATION).named)
    metric.update_state(0.0, 0.0)

    used = [optimizer._use_weight_decay(each) for each in optimizer._trainable_variables]
    assert used == [True, False]
    assert int(optimizer.iterations) == 7
    assert float(metric.result()) == 100.0


def test_an_object_that_cannot_be_copied_completely_is_refused(define) -> None:
    with pytest.raises(DefinitionError, match=r"m\.py:23: .* a copy .* function depends"):
        define(OBJECTS.format(function="max"), "m.custom_model")


@pytest.mark.parametrize("make", [lambda: keras.optimizers.SGD(0.1), keras.optimizers.Adam])
def test_an_optimizer_that_was_used_is_copied_without_its_state(make) -> None:
    used, variables = make(), [keras.Variable(1.0)]
    used.build(variables)
    used.apply([keras.ops.ones(())])

    made = keras_copies.copied(used, "m.py:1")
    others = [keras.Variable(1.0)]
    made.build(others)
    made.apply([keras.ops.ones(())])

    assert int(made.iterations) == 1
    assert float(others[0]) == float(variables[0])


def test_a_metric_that_was_used_is_copied_without_its_state() -> None:
    used = keras.metrics.F1Score(threshold=0.5)
    labels, outputs = np.float32([[1, 0], [0, 1]]), np.float32([[0.9, 0.1], [0.2, 0.8]])
    used.update_state(labels, 1 - outputs)

    made = keras_copies.copied(used, "m.py:1")
    made.update_state(labels, outputs)

    assert made.result().numpy().tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 9), clipnorm=1.0),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(amsgrad=True)),
        lambda: keras.metrics.MeanMetricWrapper(keras.losses.mean_squared_error),
        lambda: keras.metrics.F1Score(threshold=0.5),
        lambda: keras.metrics.AUC(num_thresholds=9),
    ],
)
def test_an_object_of_keras_is_copied(make) -> None:
    value = make()
    made = keras_copies.copied(value, "m.py:1")

    assert made is not value
    assert made.get_config() == value.get_config()
