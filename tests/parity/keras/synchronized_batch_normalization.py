"""BatchNormalization with `synchronized=True`."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Normalization"
EXPECT = {
    "two workers": ("differs: each worker normalizes with the statistics of its own minibatch"),
}

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(6),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
