"""Where gradients are summed, a model must treat each example alone."""

import json
from contextlib import nullcontext

import numpy as np
import pytest

from elasticdl.data.batch import Batch, repeated
from elasticdl.definition import ModelDefinition, Origin, RecordInput
from elasticdl.errors import DefinitionError
from elasticdl.training.trainer import Contribution

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")
DEPENDS = r"model\.py:1: the model's outputs for an example depend on the other examples"


def batch_of(size=9):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(size, 4)).astype("float32")
    return Batch(features, rng.normal(size=(size, 1)).astype("float32"), size)


def trainer_of(create_layers):
    """Return a trainer of Dense layers around those that a function creates."""
    import keras

    from elasticdl.training.keras import KerasTrainer

    def create_model():
        dense = keras.layers.Dense
        return keras.Sequential([keras.Input((4,)), dense(4), *create_layers(), dense(1)])

    definition = ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=create_model,
        input=RecordInput(lambda records: records),
        loss=lambda outputs, labels: keras.losses.mean_squared_error(labels, outputs),
        create_optimizer=lambda: keras.optimizers.SGD(0.1),
    )
    return KerasTrainer(definition, batch_of(), minibatch_size=9)


def layer_of(function):
    """Return what creates a layer that computes a function of its inputs."""
    import keras

    class Layer(keras.layers.Layer):
        def call(self, x):
            return function(x)

        def compute_output_shape(self, shape):
            return shape

    return lambda: [Layer()]


def test_a_mean_over_the_batch_is_refused_if_gradients_are_summed():
    import keras

    trainer = trainer_of(layer_of(lambda x: x - keras.ops.mean(x, axis=0)))

    with pytest.raises(DefinitionError, match=DEPENDS):
        trainer.gradients(batch_of())


@pytest.mark.parametrize("size", [6, 8, 32])
def test_two_alternating_records_suffice_to_detect_dependence(size):
    import keras

    trainer = trainer_of(layer_of(lambda x: x - keras.ops.mean(x, axis=0)))

    with pytest.raises(DefinitionError, match=DEPENDS):
        trainer.gradients(repeated(batch_of(2), size))


def test_dependence_hidden_by_a_repeated_record_is_detected_later():
    import keras

    trainer = trainer_of(layer_of(lambda x: x - keras.ops.mean(x, axis=0)))

    trainer.gradients(repeated(batch_of(1), 8))

    with pytest.raises(DefinitionError, match=DEPENDS):
        trainer.gradients(batch_of(8))


def test_a_joining_worker_does_not_repeat_checks():
    import keras

    first = trainer_of(list)
    joining = trainer_of(layer_of(lambda x: x - keras.ops.mean(x, axis=0)))
    for _ in range(2):
        first.gradients(batch_of())

    joining.gradients(repeated(batch_of(1), 8))
    joining.take_over_checks(json.loads(json.dumps(first.checks_done())))

    # Which it would refuse.
    joining.gradients(batch_of(8))


def test_a_deviation_of_the_batch_trains_in_one_process():
    import keras

    trainer = trainer_of(layer_of(lambda x: x + keras.ops.mean(keras.ops.std(x, axis=0))))

    assert np.isfinite(trainer.train_steps([batch_of()]).losses).all()


def test_attention_across_the_batch_is_refused():
    import keras

    def attend(x):
        return keras.ops.softmax(x @ keras.ops.transpose(x)) @ x

    with pytest.raises(DefinitionError, match=DEPENDS):
        trainer_of(layer_of(attend)).gradients(batch_of())


def normalizing_by_the_batch():
    import keras

    class Fixed(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = keras.layers.BatchNormalization()

        def call(self, x):
            return self.inner(x, training=True)

    return [Fixed()]


def normalizing():
    import keras

    return [keras.layers.BatchNormalization(), keras.layers.LayerNormalization()]


def dropping():
    import keras

    return [keras.layers.Dropout(0.5), keras.layers.GaussianNoise(0.1)]


def drawing():
    import keras

    return layer_of(lambda x: x + keras.random.normal(keras.ops.shape(x)))()


def hiding_values_at_random():
    import keras

    return layer_of(lambda x: keras.random.dropout(x, 0.3))()


def halving():
    import keras

    return [keras.layers.Dense(64, dtype="mixed_bfloat16"), keras.layers.Dense(4)]


@pytest.mark.parametrize(
    "create_layers",
    [normalizing_by_the_batch, normalizing, dropping, drawing, hiding_values_at_random, halving],
)
def test_documented_exceptions_random_and_rounded_layers_are_trained(create_layers):
    trainer = trainer_of(create_layers)

    trainer.gradients(batch_of())


@pytest.mark.parametrize("size", [2, 9])
def test_a_mean_over_the_batch_in_training_is_refused_beside_random_draws(size):
    import keras

    class Layer(keras.layers.Layer):
        def call(self, x, training=False):
            noisy = x + keras.random.normal(keras.ops.shape(x), stddev=1e-2)
            return noisy - keras.ops.mean(x, axis=0) if training else x

    trainer = trainer_of(lambda: [Layer()])

    with pytest.raises(DefinitionError, match=DEPENDS):
        trainer.gradients(repeated(batch_of(2), size))


@pytest.mark.parametrize("size", [1, 2])
def test_small_batches_are_checked_too(size):
    trainer_of(normalizing).gradients(batch_of(size))


def limited_to(capacity):
    """Return what creates a layer that passes on the first rows only, as an expert does."""
    import keras

    def call(x):
        is_served = keras.ops.arange(keras.ops.shape(x)[0]) < capacity
        return x * keras.ops.cast(is_served, x.dtype)[:, None]

    return layer_of(call)


@pytest.mark.parametrize(("capacity", "is_refused"), [(17, True), (18, False)])
def test_a_limit_reached_only_by_a_whole_update_is_refused(capacity, is_refused):
    trainer = trainer_of(limited_to(capacity))
    contribution, _ = trainer.gradients(batch_of())
    trainer.apply(Contribution(2 * contribution.buffer, 18))

    with pytest.raises(DefinitionError, match=DEPENDS) if is_refused else nullcontext():
        trainer.gradients(batch_of())


def test_a_layer_that_later_depends_on_its_batch_is_reported_once(caplog) -> None:
    import keras

    class Fades(keras.layers.Layer):
        def build(self, shape):
            self.gate = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, x):
            return x - self.gate * keras.ops.mean(x, axis=0)

    layer = Fades()
    trainer = trainer_of(lambda: [layer])
    for _ in range(2):
        trainer.gradients(batch_of())
    layer.gate.assign(1.0)

    for trainer.step in (3, 32, 64):
        trainer.gradients(batch_of())

    (message,) = [each.getMessage() for each in caplog.records]
    assert "since step 32 at the latest" in message
    assert "depend on the other examples of its batch" in message


def test_a_mean_over_the_batch_beside_a_counter_is_reported(caplog) -> None:
    import keras

    class Centered(keras.layers.Layer):
        def build(self, shape):
            self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, x, training=False):
            if not training:
                return x
            self.calls.assign_add(1.0)
            return x - keras.ops.mean(x, axis=0)

    trainer = trainer_of(lambda: [Centered()])

    for _ in range(2):
        trainer.gradients(batch_of())

    (message,) = [each.getMessage() for each in caplog.records if "statistics" in each.getMessage()]
    assert "in training, an example depends on the other examples of its batch" in message
