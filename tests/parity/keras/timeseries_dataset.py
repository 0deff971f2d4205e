"""`timeseries_dataset_from_array`: windows over records that follow one another."""

import keras
import numpy as np
from shared import table_schema

GROUP = "Input"

data_schema = table_schema
loss = keras.losses.MeanSquaredError()

LENGTH = 4


def windows(x, y, batch_size):
    return keras.utils.timeseries_dataset_from_array(
        x[:-LENGTH], y[LENGTH:], sequence_length=LENGTH, batch_size=batch_size
    )


def input_fn(records):
    x = np.stack([record["x"] for record in records])
    y = np.stack([record["y"] for record in records])
    return windows(x, y, batch_size=None)


def custom_model():
    return keras.Sequential(
        [keras.Input((LENGTH, 8)), keras.layers.GRU(4), keras.layers.Dense(1)]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    def dataset(records):
        x = np.stack([record["x"] for record in records])
        y = np.stack([record["y"] for record in records])
        return windows(x, y, data.batch_size)

    model = custom_model()
    model.compile(optimizer(), loss)
    history = model.fit(
        dataset(data.train),
        epochs=data.epochs,
        shuffle=False,
        validation_data=dataset(data.validation),
        verbose=0,
    )
    return history.history, model
