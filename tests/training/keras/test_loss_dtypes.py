"""A loss function gets its arguments in floatx, as in `fit`, if it accepts labels so."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.data.batch import Batch
from elasticdl.definition import ModelDefinition, Origin, RecordInput
from elasticdl.training.keras import KerasTrainer

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")
NUM_EXAMPLES = 8


def train(loss, labels, *, dtype=None, num_outputs=1, labels_as_numpy=False):
    """Train two steps; return the losses and the weights."""

    def create_model():
        layer = keras.layers.Dense(num_outputs, kernel_initializer="ones", dtype=dtype)
        return keras.Sequential([keras.Input((4,)), layer])

    definition = ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=create_model,
        input=RecordInput(lambda records: records),
        loss=loss,
        create_optimizer=lambda: keras.optimizers.SGD(0.01),
        labels_as_numpy=labels_as_numpy,
    )
    features = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 4)).astype(np.float32)
    batch = Batch(features, labels, NUM_EXAMPLES)
    trainer = KerasTrainer(definition, batch, minibatch_size=NUM_EXAMPLES)
    losses = [*trainer.train_steps([batch]).losses, *trainer.train_steps([batch]).losses]
    return losses, trainer.model.get_weights()


def squares(outputs, labels):
    return tf.reduce_mean(tf.square(labels - 2 - outputs))


def of_classes(outputs, labels):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(labels, [-1]), outputs)


@pytest.mark.parametrize("labels_as_numpy", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float64", "bool", "float16"])
def test_labels_of_any_number_are_cast_as_in_fit(dtype, labels_as_numpy):
    labels = (np.arange(NUM_EXAMPLES)[:, None] % 2).astype(dtype)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.01), lambda given, outputs: squares(outputs, given))
    features = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 4)).astype(np.float32)
    expected = [model.train_on_batch(features, labels) for _ in range(2)]

    losses, weights = train(squares, labels, labels_as_numpy=labels_as_numpy)

    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    np.testing.assert_allclose(weights[0], model.get_weights()[0], rtol=1e-6)


def test_a_cross_entropy_of_class_numbers_gets_them_as_they_are():
    labels = np.arange(NUM_EXAMPLES) % 3

    losses, _ = train(of_classes, labels, num_outputs=3)

    assert losses[0] == pytest.approx(np.log(3), rel=1e-5)


def test_a_loss_of_half_precision_outputs_is_computed_in_float32():
    dtypes = []

    def recorded(outputs, labels):
        dtypes.append((outputs.dtype, labels.dtype))
        return squares(outputs, labels)

    train(recorded, np.ones((NUM_EXAMPLES, 1), np.float32), dtype="mixed_bfloat16")

    assert set(dtypes) == {(tf.float32, tf.float32)}


def test_floatx_may_be_set_where_the_model_is_created():
    def create_model():
        keras.config.set_floatx("float64")
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    definition = ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=create_model,
        input=RecordInput(lambda records: records),
        loss=squares,
        create_optimizer=lambda: keras.optimizers.SGD(0.01),
    )
    batch = Batch(np.ones((2, 4)), np.ones((2, 1)), 2)
    try:
        trainer = KerasTrainer(definition, batch, minibatch_size=2)
        trainer.train_steps([batch])
        dtypes = {weight.dtype for weight in trainer.model.get_weights()}
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")

    assert dtypes == {np.dtype("float64")}
