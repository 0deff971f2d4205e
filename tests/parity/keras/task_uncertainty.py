"""Learned weights of two losses (homoscedastic uncertainty), in a custom functional model."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from shared import classes, numbers, table_schema

GROUP = "Custom training"

data_schema = table_schema


def input_fn(records):
    """Return (x, a number and a class, weights of the examples)."""
    x, number = numbers(records)
    weights = np.stack([record["weight"] for record in records])[:, 0]
    return x, {"number": number, "kind": classes(records)[1]}, weights


def losses_of_examples(labels, predictions):
    return (
        keras.losses.mean_squared_error(labels["number"], predictions["number"]),
        keras.losses.sparse_categorical_crossentropy(
            labels["kind"], predictions["kind"], from_logits=True
        ),
    )


def loss(labels, predictions):
    return sum(losses_of_examples(labels, predictions))


class MultiTask(keras.Model):
    def __init__(self, units=6):
        inputs = keras.Input((8,))
        x = layers.Dense(units, activation="tanh", kernel_regularizer="l2")(inputs)
        outputs = {
            "number": layers.Dense(1, name="number")(x),
            "kind": layers.Dense(3, name="kind")(x),
        }
        super().__init__(inputs=inputs, outputs=outputs)
        self.log_variances = self.add_weight(shape=(2,), initializer="zeros", name="log_variances")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        found = sum(ops.sum(each) for each in self.losses)
        for i, values in enumerate(losses_of_examples(y, y_pred)):
            weighted = values if sample_weight is None else values * sample_weight
            log_variance = self.log_variances[i]
            found += ops.mean(weighted) * ops.exp(-log_variance) + 0.5 * log_variance
        return found


def custom_model():
    return MultiTask()


def optimizer():
    return keras.optimizers.Adam(0.02)


def plain(data):
    model = custom_model()
    model.compile(optimizer())
    train, validation = (
        tf.data.Dataset.from_tensor_slices(input_fn(records)).batch(data.batch_size)
        for records in (data.train, data.validation)
    )
    history = model.fit(
        train, epochs=data.epochs, shuffle=False, validation_data=validation, verbose=0
    )
    return history.history, model
