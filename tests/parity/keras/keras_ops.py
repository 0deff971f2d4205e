"""keras.ops in a model."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Models"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    inputs = keras.Input((8,))
    x = keras.layers.Dense(6)(inputs)
    x = keras.ops.concatenate([keras.ops.sin(x), keras.ops.relu(x)], axis=-1)
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
