"""What the outputs of a Keras model are follows from its last layer and its loss."""

import keras
import pytest
import tensorflow as tf

from elasticdl.definition import ModelDefinition, Origin, RecordInput
from elasticdl.dialects.losses import KerasLoss
from elasticdl.training.keras.scores import scores_of

SPARSE = keras.losses.SparseCategoricalCrossentropy
BINARY = keras.losses.BinaryCrossentropy


def scores(activation, loss, size=3, compiled_with=None):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(size, activation=activation)])
    if compiled_with is not None:
        model.compile(optimizer="sgd", loss=compiled_with)
    definition = ModelDefinition(
        origin=Origin("d", "model.py", 1, "model", "zoo"),
        framework="keras",
        create_model=lambda: model,
        input=RecordInput(list),
        loss=loss,
        create_optimizer=lambda: None,
        compiled=compiled_with is not None,
    )
    return scores_of(model, definition, (size,))


def of_objects(loss):
    return KerasLoss(lambda: loss)


@pytest.mark.parametrize(
    ("activation", "loss", "expected"),
    [
        ("softmax", lambda z, y: tf.reduce_sum(z), "probabilities"),
        (None, of_objects(SPARSE(from_logits=True)), "logits"),
        ("sigmoid", of_objects(SPARSE()), "probabilities"),
        (None, of_objects(SPARSE()), None),
        (None, of_objects(keras.losses.MeanSquaredError()), None),
        (
            None,
            lambda z, y: tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(y, [-1]), z),
            "logits",
        ),
        (
            None,
            of_objects(keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)),
            "logits",
        ),
    ],
)
def test_several_outputs_are_scores_of_classes(activation, loss, expected) -> None:
    assert scores(activation, loss) == expected


@pytest.mark.parametrize(
    ("activation", "loss", "expected"),
    [
        ("sigmoid", of_objects(BINARY()), "probabilities"),
        ("sigmoid", of_objects(keras.losses.MeanSquaredError()), None),
        (None, of_objects(BINARY(from_logits=True)), "logits"),
        (None, lambda z, y: keras.losses.binary_crossentropy(y, z, from_logits=True), "logits"),
        ("softmax", of_objects(BINARY()), None),
        (None, of_objects(keras.losses.MeanSquaredError()), None),
    ],
)
def test_one_output_is_a_score_only_for_a_binary_loss(activation, loss, expected) -> None:
    assert scores(activation, loss, size=1) == expected


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("sparse_categorical_crossentropy", "probabilities"),
        (SPARSE(from_logits=True), "logits"),
        ("mse", None),
        (lambda y, z: keras.losses.categorical_crossentropy(y, z, from_logits=True), "logits"),
    ],
)
def test_a_compiled_model_is_judged_by_its_own_loss(loss, expected) -> None:
    assert scores("relu", None, compiled_with=loss) == expected
