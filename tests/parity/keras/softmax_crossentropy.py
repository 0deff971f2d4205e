"""SparseCategoricalCrossentropy of a softmax."""

import keras
from shared import classes, fit, table_schema

GROUP = "Losses"

data_schema, input_fn = table_schema, classes
loss = keras.losses.SparseCategoricalCrossentropy()


def custom_model():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, activation="softmax")])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
