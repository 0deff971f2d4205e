"""Outputs [n, 1] and labels [n] make [n, n] in a loss that subtracts them: that is told."""

import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.definition import ModelDefinition, Origin, RecordInput

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")


def train(loss, labels):
    import keras

    from elasticdl.training.keras import KerasTrainer

    definition = ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]),
        input=RecordInput(lambda records: records),
        loss=loss,
        create_optimizer=lambda: keras.optimizers.SGD(0.1),
    )
    batch = Batch(np.ones((8, 4), np.float32), labels, 8)
    trainer = KerasTrainer(definition, batch, minibatch_size=8)
    trainer.train_steps([batch])
    trainer.train_steps([batch, batch])


def squares(outputs, labels):
    import tensorflow as tf

    return tf.reduce_mean((outputs - tf.cast(labels, tf.float32)) ** 2)


def of_keras(outputs, labels):
    import keras

    return keras.losses.mean_squared_error(labels, outputs)


def squeezing(outputs, labels):
    import tensorflow as tf

    return tf.reduce_mean((tf.squeeze(outputs, -1) - labels) ** 2)


@pytest.mark.parametrize("labels", [np.arange(8), np.ones(8, np.float32)])
def test_a_loss_that_broadcasts_to_all_pairs_is_reported_once(labels, caplog):
    train(squares, labels)

    found = [r.getMessage() for r in caplog.records if "[n, n]" in r.getMessage()]
    assert len(found) == 1
    assert found[0].startswith("model.py:1: ")


@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        (squares, np.ones((8, 1), np.float32)),
        (of_keras, np.ones(8, np.float32)),
        (squeezing, np.ones(8, np.float32)),
    ],
)
def test_a_loss_per_example_is_not_reported(loss, labels, caplog):
    train(loss, labels)

    assert "[n, n]" not in caplog.text
