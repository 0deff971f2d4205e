"""`timeseries_dataset_from_array`, and other pipelines that read their own data."""

import keras
import numpy as np
from shared import table_schema

GROUP = "Input"
EXPECT = "refused: batches are made from records, so that workers can share them"
REFUSAL = "the pipeline does not read the dataset that it receives"

LENGTH = 4

data_schema = table_schema
loss = keras.losses.MeanSquaredError()


def windows(x, y, batch_size):
    """Return (so many rows of x, the y after them)."""
    return keras.utils.timeseries_dataset_from_array(
        x[:-LENGTH], y[LENGTH:], sequence_length=LENGTH, batch_size=batch_size
    )


def feed(dataset, mode):
    steps = np.arange(50, dtype=np.float32)[:, None]
    return windows(np.sin(steps + np.arange(8)), np.sin(steps), batch_size=None)


def custom_model():
    return keras.Sequential([keras.Input((LENGTH, 8)), keras.layers.GRU(4), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    x = np.stack([record["x"] for record in data.train])
    y = np.stack([record["y"] for record in data.train])
    history = model.fit(
        windows(x, y, data.batch_size), epochs=data.epochs, shuffle=False, verbose=0
    )
    return history.history, model
