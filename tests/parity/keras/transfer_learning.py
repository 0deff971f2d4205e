"""Transfer learning: a frozen base called with `training=False`."""

import keras
from shared import classes, fit, table_schema

GROUP = "Transfer learning"

data_schema, input_fn = table_schema, classes
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def custom_model():
    base = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(),
        ],
        name="base",
    )
    base.trainable = False
    inputs = keras.Input((8,))
    return keras.Model(inputs, keras.layers.Dense(3)(base(inputs, training=False)))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
