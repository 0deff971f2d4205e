"""A batch is checked before the gradients of its parts are summed; see also the part checks."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tests.training.keras.test_trainer import batch_of, definition_of, mean_loss, trainer_of

from elasticdl.errors import DefinitionError


@pytest.fixture(autouse=True)
def keras():
    import keras

    return keras


def test_checks_of_later_batches_see_the_model_as_it_was_compiled():
    import keras

    def create():
        # Without a rate, the layer has no seed generator.
        return keras.Sequential(
            [keras.Input((4,)), keras.layers.Dropout(0.0), keras.layers.Dense(3)]
        )

    trainer = trainer_of(definition_of(create_model=create))
    given = []
    for number in range(20):
        trainer.model.layers[0].rate = number / 20
        contribution, _ = trainer.gradients(batch_of(8))
        given.append(contribution.buffer.copy())

    assert all(np.array_equal(each, given[0]) for each in given)


def test_a_loss_that_is_a_sum_is_refused_on_workers():

    summed = definition_of(loss=lambda o, y: tf.reduce_sum(mean_loss(o, y) * 8.0 * tf.ones([8])))
    summed = dataclasses.replace(
        summed, loss=lambda o, y: mean_loss(o, y) * tf.cast(tf.shape(o)[0], tf.float32)
    )

    with pytest.raises(DefinitionError, match="need a loss that is a mean over the batch"):
        trainer_of(summed).gradients(batch_of(8))
