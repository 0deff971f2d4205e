"""Outputs [n, 1] and labels [n] broadcast to [n, n] in a loss that subtracts them."""

import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.definition import (
    MetricFunctions,
    Mode,
    ModelDefinition,
    NamedMetric,
    Origin,
    RecordInput,
)

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")
NUM_EXAMPLES = 8


def squares(outputs, labels):
    import tensorflow as tf

    return tf.reduce_mean((outputs - tf.cast(labels, tf.float32)) ** 2)


def of_keras(outputs, labels):
    import keras

    return keras.losses.mean_squared_error(labels, outputs)


def squeezing(outputs, labels):
    import tensorflow as tf

    return tf.reduce_mean((tf.squeeze(outputs, -1) - tf.squeeze(labels)) ** 2)


def flattening(outputs, labels):
    import tensorflow as tf

    return tf.reduce_mean((tf.reshape(outputs, [-1]) - labels.flatten()) ** 2)


def of_pairs(outputs, labels):
    import tensorflow as tf

    of_labels = tf.reshape(labels, [-1, 1]) - tf.reshape(labels, [1, -1])
    return tf.reduce_mean((outputs - tf.transpose(outputs) - of_labels) ** 2)


def of_flat_pairs(outputs, labels):
    import tensorflow as tf

    of_labels = labels[:, None] - labels[None, :]
    return tf.reduce_mean((outputs - tf.transpose(outputs) - of_labels) ** 2)


def absolute(labels, outputs):
    import tensorflow as tf

    return tf.abs(outputs - tf.cast(labels, tf.float32))


def train(
    loss, labels, *, outputs=2, metric=None, is_default=False, labels_as_numpy=False, width=1
):
    """Train two steps; return the losses, the last metric and the weights."""
    import keras

    from elasticdl.training.keras import KerasTrainer

    def create_model():
        last = [keras.layers.Reshape(())] if outputs == 1 else []
        return keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(width, kernel_initializer="ones"), *last]
        )

    named = [NamedMetric("absolute", metric)] if metric else []
    definition = ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=create_model,
        input=RecordInput(lambda records: records, is_default=is_default),
        loss=loss,
        create_optimizer=lambda: keras.optimizers.SGD(0.1),
        create_metrics=lambda mode: MetricFunctions(named=named if mode is Mode.EVALUATION else []),
        labels_as_numpy=labels_as_numpy,
    )
    features = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 4)).astype(np.float32)
    batch = Batch(features, labels, NUM_EXAMPLES)
    trainer = KerasTrainer(definition, batch, minibatch_size=NUM_EXAMPLES)
    losses = [*trainer.train_steps([batch]).losses, *trainer.train_steps([batch]).losses]
    states = trainer.evaluate(batch)
    measured = trainer.evaluation_metrics.results(states)
    return losses, measured.get("absolute"), trainer.model.get_weights()


@pytest.mark.parametrize("labels_as_numpy", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@pytest.mark.parametrize("outputs", [1, 2])
def test_a_loss_gets_labels_in_the_shape_of_the_outputs(outputs, dtype, labels_as_numpy):
    flat = np.arange(NUM_EXAMPLES).astype(dtype)
    expected = train(squares, flat if outputs == 1 else flat[:, None], outputs=outputs)

    found = train(
        squares,
        flat[:, None] if outputs == 1 else flat,
        outputs=outputs,
        labels_as_numpy=labels_as_numpy,
    )

    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    np.testing.assert_allclose(found[2][0], expected[2][0], rtol=1e-6)


@pytest.mark.parametrize("loss", [of_keras, squeezing, of_pairs])
def test_a_loss_that_is_right_with_any_shape_keeps_the_labels(loss):
    labels = np.arange(NUM_EXAMPLES, dtype=np.float32)

    np.testing.assert_allclose(train(loss, labels)[0], train(loss, labels[:, None])[0], rtol=1e-6)


def test_a_loss_that_compares_pairs_of_flat_labels_keeps_them():
    labels = np.arange(NUM_EXAMPLES, dtype=np.float32)

    np.testing.assert_allclose(
        train(of_flat_pairs, labels)[0], train(of_pairs, labels)[0], rtol=1e-6
    )


def test_a_loss_that_flattens_numpy_labels_works():
    labels = np.arange(NUM_EXAMPLES, dtype=np.float32)

    found = train(flattening, labels, labels_as_numpy=True)

    np.testing.assert_allclose(found[0], train(squares, labels[:, None])[0], rtol=1e-6)


def test_a_metric_gets_labels_of_the_default_input_in_the_shape_of_the_outputs(caplog):
    labels = np.arange(NUM_EXAMPLES)
    expected = train(squares, labels[:, None], metric=absolute)

    found = train(squares, labels, metric=absolute, is_default=True)

    assert found[1] == pytest.approx(expected[1])
    assert "[n, n]" not in caplog.text


def test_a_metric_that_broadcasts_labels_of_an_input_function_is_reported_once(caplog):
    labels = np.arange(NUM_EXAMPLES)

    train(squares, labels, metric=absolute)

    found = [r.getMessage() for r in caplog.records if "[n, n]" in r.getMessage()]
    assert len(found) == 1
    assert "the metric 'absolute' broadcasts them with" in found[0]


def of_mixture(outputs, labels):
    import tensorflow as tf

    scores, means = tf.split(outputs, 2, axis=1)
    squares = tf.square(tf.expand_dims(labels, -1) - means)
    return tf.reduce_mean(tf.reduce_sum(tf.nn.softmax(scores) * squares, axis=1))


def of_likelihood(outputs, labels):
    import tensorflow as tf

    # Times that are compared with each other on purpose.
    is_at_risk = tf.cast(labels >= tf.transpose(labels), tf.float32)
    risk = outputs[:, :1]
    at_risk = tf.reduce_sum(is_at_risk * tf.transpose(tf.exp(risk)), axis=1)
    return tf.reduce_mean(tf.math.log(at_risk) - risk[:, 0])


@pytest.mark.parametrize("labels_as_numpy", [False, True])
def test_labels_of_the_default_input_fit_outputs_of_several_numbers(labels_as_numpy):
    flat = np.arange(NUM_EXAMPLES, dtype=np.float32) / 4
    expected = train(of_mixture, flat, width=4)

    found = train(
        of_mixture, flat[:, None], width=4, is_default=True, labels_as_numpy=labels_as_numpy
    )

    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)


def test_labels_of_an_input_function_for_several_outputs_are_reported(caplog):
    flat = np.arange(NUM_EXAMPLES, dtype=np.float32) / 4

    train(of_mixture, flat[:, None], width=4)

    assert "the loss broadcasts them with the model's outputs to [n, n]" in caplog.text
    assert "Give the labels the shape [n]." in caplog.text


def test_a_loss_that_compares_labels_with_each_other_keeps_them():
    times = np.arange(NUM_EXAMPLES, dtype=np.float32)[:, None]

    found = train(of_likelihood, times, width=4, is_default=True)

    np.testing.assert_array_equal(found[0], train(of_likelihood, times, width=4)[0])


@pytest.mark.parametrize(
    ("name", "width", "is_reported"),
    [
        ("CategoricalGeneralizedCrossEntropy", 3, True),
        ("SparseCategoricalCrossentropy", 3, False),
        ("MeanSquaredError", 1, False),
    ],
)
@pytest.mark.parametrize("is_column", [True, False])
def test_a_keras_loss_object_that_broadcasts_labels_is_reported(
    caplog, name, width, is_reported, is_column
):
    import keras

    from elasticdl.dialects.losses import KerasLoss

    labels = np.arange(NUM_EXAMPLES) % width

    train(
        KerasLoss(getattr(keras.losses, name)),
        labels[:, None] if is_column else labels,
        width=width,
    )

    assert ("Give the labels the shape [n]." in caplog.text) == (is_reported and is_column)


def of_quantiles(outputs, labels):
    import tensorflow as tf

    errors = labels - outputs
    return tf.reduce_mean(tf.maximum(0.1 * errors, -0.9 * errors))


@pytest.mark.parametrize("loss", [squares, of_keras, of_quantiles])
def test_a_loss_that_compares_one_label_with_several_outputs_causes_one_warning(loss, caplog):
    labels = np.linspace(0, 1, NUM_EXAMPLES, dtype=np.float32)[:, None]

    train(loss, labels, width=3, is_default=True)

    (note,) = [each for each in caplog.messages if "all 3 outputs" in each]
    assert note.startswith("model.py:1: the loss compares each label with all 3 outputs")


@pytest.mark.parametrize(
    ("loss", "is_default"),
    [
        (lambda outputs, labels: squares(outputs[:, :1], labels), True),
        (lambda outputs, labels: squares(outputs, labels + 0 * outputs), True),
        (squares, False),
    ],
)
def test_labels_that_are_meant_for_several_outputs_cause_no_warning(loss, is_default, caplog):
    labels = np.linspace(0, 1, NUM_EXAMPLES, dtype=np.float32)[:, None]

    train(loss, labels, width=3, is_default=is_default)

    assert "all 3 outputs" not in caplog.text
