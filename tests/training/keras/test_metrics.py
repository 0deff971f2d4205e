"""Metrics say what Keras' own fit and evaluate say, batch after batch, or are refused by name."""

import dataclasses

import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.definition import (
    BatchesInput,
    MetricFunctions,
    ModelDefinition,
    NamedMetric,
    Origin,
    RecordInput,
)
from elasticdl.errors import DefinitionError
from elasticdl.evaluation.metrics import add_states

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")


@pytest.fixture(scope="module", autouse=True)
def keras():
    import keras

    return keras


# --- metrics of users -------------------------------------------------------------------------


def largest_error():
    import keras

    class LargestError(keras.metrics.Metric):
        def __init__(self, **options):
            super().__init__(**options)
            self.largest = self.add_variable((), "zeros", name="largest")

        def update_state(self, y_true, y_pred, sample_weight=None):
            error = keras.ops.max(keras.ops.abs(keras.ops.cast(y_true, "float32") - y_pred))
            self.largest.assign(keras.ops.maximum(self.largest, error))

        def result(self):
            return self.largest

    return LargestError(name="largest_error")


def smallest():
    import keras

    class Smallest(keras.metrics.Metric):
        """Starts at 100, so that a sum of its states counts that once a batch."""

        def __init__(self, **options):
            super().__init__(**options)
            self.least = self.add_variable((), keras.initializers.Constant(100.0), name="least")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.least.assign(keras.ops.minimum(self.least, keras.ops.min(y_pred)))

        def result(self):
            return self.least

        def reset_state(self):
            self.least.assign(100.0)

    return Smallest(name="smallest")


def any_above():
    import keras

    class AnyAbove(keras.metrics.Metric):
        """Has a state that is no number."""

        def __init__(self, **options):
            super().__init__(**options)
            self.found = self.add_variable((), "zeros", dtype="bool", name="found")

        def update_state(self, y_true, y_pred, sample_weight=None):
            above = keras.ops.any(keras.ops.cast(y_true, "float32") > 6.0)
            self.found.assign(keras.ops.logical_or(self.found, above))

        def result(self):
            return keras.ops.cast(self.found, "float32")

    return AnyAbove(name="any_above")


def moving_average():
    import keras

    class MovingAverage(keras.metrics.Metric):
        """Depends on the order of the batches."""

        def __init__(self, **options):
            super().__init__(**options)
            self.value = self.add_variable((), "zeros", dtype="float64", name="value")
            self.batches = self.add_variable((), "zeros", dtype="int64", name="batches")

        def update_state(self, y_true, y_pred, sample_weight=None):
            mean = keras.ops.cast(keras.ops.mean(y_true), "float64")
            self.value.assign(0.5 * self.value + mean)
            self.batches.assign(self.batches + 1)

        def result(self):
            return self.value + keras.ops.cast(self.batches, "float64")

    return MovingAverage(name="moving_average")


def exact_count():
    import keras

    class ExactCount(keras.metrics.Metric):
        """Adds up, in whole numbers that float32 does not have."""

        def __init__(self, **options):
            super().__init__(**options)
            self.total = self.add_variable((), "zeros", dtype="int64", name="total")

        def update_state(self, y_true, y_pred, sample_weight=None):
            ones = keras.ops.cast(keras.ops.ones_like(y_true), "int64")
            self.total.assign(self.total + 16_777_217 * keras.ops.sum(ones))

        def result(self):
            return keras.ops.cast(self.total, "float64")

    return ExactCount(name="exact_count")


def own_mean():
    import keras

    class OwnMean(keras.metrics.Mean):
        """Adds up, though it is no class of Keras'."""

        def update_state(self, y_true, y_pred, sample_weight=None):
            return super().update_state(keras.ops.square(y_pred))

    return OwnMean(name="own_mean")


CARRIED = [largest_error, smallest, any_above, moving_average]
SUMMED = [exact_count, own_mean]


# --- models -----------------------------------------------------------------------------------


def linear():
    import keras

    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


def batches():
    """Return three batches, the last of another size; labels from 0 to 9."""
    rng = np.random.default_rng(0)
    found = []
    for size in (6, 6, 4):
        x = rng.normal(size=(size, 3)).astype("float32")
        found.append(Batch(x, rng.integers(0, 10, (size, 1)).astype("float32"), size))
    return found


def weighted(batch):
    """Return a batch as a compiled model takes it."""
    weights = np.ones(batch.num_examples, "float32")
    return dataclasses.replace(batch, labels=(batch.labels, weights))


def compiled_definition(create):
    made = []

    def create_model():
        made.append(create())
        return made[-1]

    return ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=create_model,
        input=BatchesInput(lambda data, mode: None),
        loss=None,
        create_optimizer=lambda: made[-1].optimizer,
        compiled=True,
    )


def definition_of(*metrics, create=linear, scalars=None):
    import keras

    functions = MetricFunctions(
        scalars=scalars, named=[NamedMetric(m.name, m) for m in metrics], where="zoo/model.py:41"
    )
    return ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=create,
        input=RecordInput(lambda records: records),
        loss=lambda outputs, labels: keras.ops.mean(keras.ops.square(outputs - labels)),
        create_optimizer=lambda: keras.optimizers.SGD(0.01),
        create_metrics=lambda mode: functions,
    )


def trainer_of(definition, example=None):
    from elasticdl.training.keras import KerasTrainer

    example = batches()[0] if example is None else example
    return KerasTrainer(definition, example, minibatch_size=6)


def evaluated(trainer, some):
    """Evaluate as the engines do."""
    total = {}
    for batch in some:
        found = trainer.evaluate(batch, total)
        total = add_states([total, found], trainer.evaluation_metrics.ordered)
    return trainer.evaluation_metrics.results(total)


def trained(trainer, groups):
    total = {}
    for group in groups:
        found = trainer.train_steps(group, total).metrics
        total = add_states([total, found], trainer.training_metrics.ordered)
    return trainer.training_metrics.results(total)


def reference_of(trainer, metrics, create=linear):
    import keras

    model = create()
    model.compile(keras.optimizers.SGD(0.01), "mse", metrics=metrics, jit_compile=False)
    model.set_weights(trainer.model.get_weights())
    return model


def as_fit_takes_them(some):
    return ((batch.features, batch.labels) for batch in some)


def assert_close(ours, theirs, rtol=1e-5):
    assert sorted(ours) == sorted(theirs)
    for name in ours:
        np.testing.assert_allclose(ours[name], np.squeeze(theirs[name]), rtol=rtol, err_msg=name)


# --- states that do not add up ------------------------------------------------------------------


@pytest.mark.parametrize("make", [*CARRIED, *SUMMED])
def test_a_custom_metric_matches_keras(make):
    trainer, some = trainer_of(definition_of(make())), batches()
    reference = reference_of(trainer, [make()])

    theirs = reference.evaluate(as_fit_takes_them(some), steps=3, verbose=0, return_dict=True)
    assert_close(evaluated(trainer, some), theirs)

    ours = trained(trainer, [some[:2], some[2:]])
    theirs = reference.fit(as_fit_takes_them(some), steps_per_epoch=3, shuffle=False, verbose=0)
    assert_close(ours, {name: values[-1] for name, values in theirs.history.items()})


@pytest.mark.parametrize("make", CARRIED)
def test_a_state_that_does_not_add_up_is_carried(make):
    trainer = trainer_of(definition_of(make()))

    assert trainer.training_metrics.ordered == {make().name}
    assert trainer.evaluation_metrics.ordered == {make().name}


def test_metrics_are_in_the_order_of_the_file_whether_carried_or_summed(keras):
    def made():
        return trainer_of(definition_of(largest_error(), keras.metrics.MeanSquaredError()))

    names = ["loss", "largest_error", "mean_squared_error"]

    assert list(evaluated(made(), batches())) == names
    assert list(trained(made(), [batches()[:2]])) == names


@pytest.mark.parametrize("make", SUMMED)
def test_a_state_that_adds_up_is_summed(make):
    assert not trainer_of(definition_of(make())).training_metrics.ordered


@pytest.mark.parametrize("make", CARRIED)
def test_grouping_of_steps_does_not_change_a_carried_state(make):
    one, other, some = (
        trainer_of(definition_of(make())),
        trainer_of(definition_of(make())),
        batches()[:2],
    )

    assert trained(one, [some]) == trained(other, [some[:1], some[1:]])


@pytest.mark.parametrize("make", CARRIED)
def test_a_carried_state_survives_a_checkpoint(make):
    from elasticdl.engines.train_progress import states_from_json, states_to_json

    some = batches()
    total = evaluated(trainer_of(definition_of(make())), some)

    before = trainer_of(definition_of(make())).evaluate(some[0])
    kept = states_from_json(states_to_json(before))
    resumed = trainer_of(definition_of(make()))
    for batch in some[1:]:
        kept = add_states([kept, resumed.evaluate(batch, kept)], [make().name])

    assert resumed.evaluation_metrics.results(kept) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("make", CARRIED)
def test_a_carried_metric_is_refused_by_name_if_states_are_summed(make):
    trainer = trainer_of(definition_of(make()))

    with pytest.raises(DefinitionError) as caught:
        trainer.require_sums("several workers")

    assert f"zoo/model.py:41: the states of the metric '{make().name}'" in str(caught.value)
    assert "several workers" in str(caught.value)


def test_a_metric_whose_reset_keeps_a_state_is_refused(keras):
    class Lasting(keras.metrics.MeanAbsoluteError):
        def __init__(self, **options):
            super().__init__(**options)
            self.num_resets = self.add_variable((), "zeros", name="num_resets")

        def reset_state(self):
            self.total.assign(0.0)
            self.count.assign(0.0)
            self.num_resets.assign_add(1.0)

    with pytest.raises(DefinitionError, match=r"'lasting' \(Lasting\) does not reset .*num_resets"):
        trainer_of(definition_of(Lasting(name="lasting")))


def test_an_undecided_metric_is_refused_when_a_batch_disproves_it():
    some = batches()
    nothing = Batch(np.zeros((6, 3), "float32"), np.zeros((6, 1), "float32"), 6)
    trainer = trainer_of(definition_of(largest_error()), nothing)
    trainer.require_sums("several workers")

    trainer.evaluate(nothing)
    with pytest.raises(DefinitionError, match="'largest_error'.* do not add up"):
        trainer.evaluate(some[0])


def test_an_undecided_metric_is_summed_when_a_batch_proves_it():
    nothing = Batch(np.zeros((6, 3), "float32"), np.zeros((6, 1), "float32"), 6)
    trainer = trainer_of(definition_of(own_mean()), nothing)
    assert trainer.evaluation_metrics.ordered == {"own_mean"}
    trainer.require_sums("several workers")

    for batch in batches():
        trainer.evaluate(batch)

    assert not trainer.evaluation_metrics.ordered
    assert not trainer.evaluation_metrics.variables.unproved


def test_metrics_of_a_compiled_model_are_carried_too():
    def create():
        import keras

        model = linear()
        model.compile(
            keras.optimizers.SGD(0.01), "mse", metrics=[largest_error(), "mae"], jit_compile=False
        )
        return model

    some = [weighted(batch) for batch in batches()]
    trainer = trainer_of(compiled_definition(create), some[0])
    reference = create()
    reference.set_weights(trainer.model.get_weights())
    keras_batches = as_fit_takes_them(batches())

    theirs = reference.evaluate(keras_batches, steps=3, verbose=0, return_dict=True)
    assert_close(evaluated(trainer, some), theirs)
    assert trainer.evaluation_metrics.ordered == {"largest_error"}
    with pytest.raises(DefinitionError, match="'largest_error'"):
        trainer.require_sums("several workers")


# --- states that no step can keep ---------------------------------------------------------------


def test_a_state_in_a_python_attribute_is_refused():
    import keras

    class InPython(keras.metrics.Metric):
        def __init__(self, **options):
            super().__init__(**options)
            self.batches = self.add_variable((), "zeros")
            self.total = 0.0

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.batches.assign(self.batches + 1)
            self.total += float(keras.ops.sum(y_pred))

        def result(self):
            return self.total

    with pytest.raises(DefinitionError, match="'python' .* keeps its state in self.total"):
        trainer_of(definition_of(InPython(name="python")))


def test_a_state_in_a_tensorflow_variable_is_refused():
    import keras
    import tensorflow as tf

    class InTensorFlow(keras.metrics.Metric):
        def __init__(self, **options):
            super().__init__(**options)
            self.total = tf.Variable(0.0)

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.total.assign_add(tf.reduce_sum(y_pred))

        def result(self):
            return self.total

    with pytest.raises(DefinitionError, match="'tf' .* keeps its state in"):
        trainer_of(definition_of(InTensorFlow(name="tf")))


def test_a_metric_that_gets_all_outputs_is_refused_with_advice(keras):
    def create():
        inputs = keras.Input((3,))
        outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in ("a", "b")}
        return keras.Model(inputs, outputs)

    metric = keras.metrics.MeanSquaredError(name="error")
    labels = {name: np.ones((4, 1), np.float32) for name in ("a", "b")}
    batch = Batch(np.ones((4, 3), np.float32), labels, 4)
    definition = dataclasses.replace(
        definition_of(metric, create=create),
        loss=lambda outputs, labels: keras.ops.mean((outputs["a"] - labels["a"]) ** 2, axis=-1),
    )

    with pytest.raises(
        DefinitionError, match=r"'error' gets labels as a dict \(a, b\) and outputs .*labels\['a'\]"
    ):
        trainer_of(definition, batch).evaluate(batch)


@pytest.mark.parametrize("name", ["Mean", "Sum"])
def test_a_metric_of_values_is_refused(keras, name):
    with pytest.raises(DefinitionError, match=f"is a {name}, whose .* takes values, not"):
        trainer_of(definition_of(getattr(keras.metrics, name)(name="m")))


def test_a_tf_keras_metric_is_refused():
    tf_keras = pytest.importorskip("tf_keras")

    with pytest.raises(DefinitionError, match="'mae' is a tf_keras.*expected a metric of Keras 3"):
        trainer_of(definition_of(tf_keras.metrics.MeanAbsoluteError(name="mae")))


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["loss", "val_error"])
def test_a_metric_with_a_taken_name_is_refused(keras, name):
    with pytest.raises(DefinitionError, match=rf"zoo/model.py:41: a metric is named '{name}'"):
        trainer_of(definition_of(keras.metrics.MeanAbsoluteError(name=name)))


@pytest.mark.parametrize("name", ["loss", "val_error"])
def test_a_value_with_a_taken_name_is_refused_before_the_first_step(name):
    definition = definition_of(scalars=lambda outputs, labels: {name: 7.0})

    with pytest.raises(DefinitionError, match=rf"zoo/model.py:41: a metric is named '{name}'"):
        trainer_of(definition)


def test_metrics_with_the_same_name_are_refused(keras):
    twice = [keras.metrics.MeanAbsoluteError(name="a"), keras.metrics.MeanSquaredError(name="a")]

    with pytest.raises(DefinitionError, match="two metrics are named 'a'"):
        trainer_of(definition_of(*twice))


def test_a_compiled_models_metric_with_the_name_of_the_loss_is_refused(keras):
    def create():
        model = linear()
        model.compile("sgd", "mse", metrics=[keras.metrics.MeanAbsoluteError(name="loss")])
        return model

    example = weighted(batches()[0])
    with pytest.raises(DefinitionError, match="model.py:1: a metric is named 'loss'"):
        trainer_of(compiled_definition(create), example)


# --- metrics in layers --------------------------------------------------------------------------


def with_a_layers_metric():
    import keras

    class Watched(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.size = keras.metrics.Mean(name="size")
            self.peak = largest_error()

        def call(self, x):
            self.size.update_state(keras.ops.abs(x))
            self.peak.update_state(keras.ops.zeros_like(x), x)
            return x

    x = keras.Input((3,))
    return keras.Model(x, Watched()(keras.layers.Dense(1)(x)))


def with_a_models_metric():
    import keras

    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.size = keras.metrics.Sum(name="size")

        def call(self, x):
            outputs = self.dense(x)
            self.size.update_state(keras.ops.abs(outputs))
            return outputs

    model = Net()
    model(np.zeros((1, 3), "float32"))
    return model


@pytest.mark.parametrize("create", [with_a_layers_metric, with_a_models_metric])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_metrics_of_layers_and_models_are_reported_as_by_keras(keras, create, is_compiled):
    some = batches()
    if is_compiled:

        def compiled():
            model = create()
            model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"], jit_compile=False)
            return model

        some = [weighted(batch) for batch in some]
        trainer = trainer_of(compiled_definition(compiled), some[0])
    else:
        trainer = trainer_of(definition_of(keras.metrics.MeanAbsoluteError("mae"), create=create))
    reference = reference_of(trainer, ["mae"], create)

    theirs = reference.evaluate(as_fit_takes_them(batches()), steps=3, verbose=0, return_dict=True)
    assert_close(evaluated(trainer, some), theirs)

    ours = trained(trainer, [some[:2], some[2:]])
    theirs = reference.fit(
        as_fit_takes_them(batches()), steps_per_epoch=3, shuffle=False, verbose=0
    )
    assert_close(ours, {name: values[-1] for name, values in theirs.history.items()})
