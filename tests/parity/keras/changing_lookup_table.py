"""A layer that counts keys in a mutable table of `tf.lookup`."""

import keras
import tensorflow as tf
from shared import fit, numbers, table_schema

GROUP = "Custom layers"
EXPECT = "refused: no checkpoint holds a table; fill it in the model file, or use a weight"
REFUSAL = r"the lookup table Counts\.table changes in training"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Counts(keras.layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, default_value=0)

    def call(self, x, training=False):
        keys = tf.cast(tf.round(x), tf.int64)
        if training:
            self.table.insert(keys, self.table.lookup(keys) + 1)
        counts = tf.cast(self.table.lookup(keys), tf.float32)
        return x / (1.0 + tf.ensure_shape(counts, x.shape))


def custom_model():
    return keras.Sequential([keras.Input((8,)), Counts(), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.05)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
