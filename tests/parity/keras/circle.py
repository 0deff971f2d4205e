"""Circle (metric learning over pairs of the batch)."""

import keras
from shared import classes, fit, table_schema

GROUP = "Losses"
EXPECT = {"workers": "refused: each worker would see only the pairs of its own minibatch"}
REFUSAL = "batch"

data_schema, input_fn = table_schema, classes
loss = keras.losses.Circle()


def custom_model():
    return keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(4), keras.layers.UnitNormalization()]
    )


def optimizer():
    return keras.optimizers.SGD(0.001)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
