"""`tf.random` in the input function, which also adds noise to the validation data."""

import keras
import tensorflow as tf
from shared import fit, mlp, numbers, table_schema

GROUP = "Input"
EXPECT = "differs: random draws are a function of (seed, epoch, batch), not of a generator's state"

data_schema = table_schema
loss = keras.losses.MeanSquaredError()


def input_fn(records):
    x, y = numbers(records)
    return (x + tf.random.normal(x.shape, stddev=0.3)).numpy(), y


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
