"""MultiHeadAttention with a causal mask."""

import keras
from shared import fit, series, series_schema

GROUP = "Attention"

data_schema, input_fn = series_schema, series
loss = keras.losses.MeanSquaredError()


def custom_model():
    inputs = keras.Input((6, 3))
    x = keras.layers.MultiHeadAttention(2, 4)(inputs, inputs, use_causal_mask=True)
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.add([x, inputs]))
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
