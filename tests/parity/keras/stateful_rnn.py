"""Stateful RNN."""

import keras
from shared import fit, series, series_schema

GROUP = "Sequences"
EXPECT = "refused: a state cannot be carried from batch to batch if workers share the batches"
REFUSAL = "stateful"

data_schema, input_fn = series_schema, series
loss = keras.losses.MeanSquaredError()


def custom_model():
    inputs = keras.Input(batch_shape=(2, 6, 3))
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.GRU(4, stateful=True)(inputs)))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
