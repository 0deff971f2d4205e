"""The model of `tests/engines/elastic/zoo/counting.py` in Keras, with callbacks that remember.

The gradient of record i is the i-th unit vector, and the optimizer adds what was summed, so after
epoch k every weight is k. The callbacks count as well: who takes over a state takes over theirs.
"""

import keras
import numpy as np
import tensorflow as tf

NUM_RECORDS = 1000
# No mean count ever stops to grow for so many epochs.
PATIENCE = 10**6


class Counts(keras.layers.Layer):
    """One weight a record, returned for those of a batch."""

    def build(self, _):
        self.counts = self.add_weight(shape=(NUM_RECORDS,), initializer="zeros", name="counts")

    def call(self, number):
        return keras.ops.take(self.counts, number)


class Add(keras.optimizers.Optimizer):
    """Adds what was summed over the examples; what arrives is divided by their number."""

    def __init__(self):
        super().__init__(learning_rate=1.0)

    def update_step(self, gradient, variable, learning_rate):
        """Count."""
        gradient = tf.convert_to_tensor(gradient)
        size = tf.abs(gradient)
        once = tf.reduce_min(tf.where(size > 0, size, np.inf))
        self.assign_add(variable, tf.round(gradient / once))


class Moments(keras.callbacks.Callback):
    """Counts what it is called for; these numbers are its state."""

    def __init__(self):
        super().__init__()
        self.num_epochs_begun = self.num_epochs = 0
        self.num_tests_begun = self.num_tests = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.num_epochs_begun += 1

    def on_epoch_end(self, epoch, logs=None):
        self.num_epochs += 1

    def on_test_begin(self, logs=None):
        self.num_tests_begun += 1

    def on_test_end(self, logs=None):
        self.num_tests += 1


def custom_model():
    number = keras.Input((1,), dtype="int64", name="number")
    return keras.Model(number, Counts()(number))


def data_schema():
    return [{"name": "number", "shape": [1], "dtype": "int64"}]


def input_fn(records):
    numbers = np.stack([record["number"] for record in records])
    return {"number": numbers}, numbers


def loss(labels, predictions):
    return keras.ops.mean(predictions)


def optimizer():
    return Add()


def eval_metrics_fn(predictions, labels):
    """Return the mean count; the exact ones are in the weights."""
    return {"mean_count": keras.ops.mean(predictions)}


def callbacks():
    # The validation is on the data of the training, so it grows by one an epoch.
    return [
        Moments(),
        keras.callbacks.EarlyStopping("val_mean_count", mode="max", patience=PATIENCE),
    ]
