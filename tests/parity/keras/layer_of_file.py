"""A layer without a name at the top level of the file, beside one of its class in the model."""

import keras
from shared import classes, fit, table_schema

GROUP = "Models"

data_schema, input_fn = table_schema, classes
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

hidden = keras.layers.Dense(6, "relu", kernel_initializer=keras.initializers.GlorotUniform(seed=3))


def custom_model():
    return keras.Sequential([keras.Input((8,)), hidden, keras.layers.Dense(3)])


def optimizer():
    return keras.optimizers.Adam(0.02)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
