"""MultiHeadAttention trained with Adam: the bias of the keys."""

import keras
from shared import fit, series, series_schema

GROUP = "Attention"
EXPECT = (
    "differs: the bias of the keys has no effect; its gradient is rounding error, which Adam turns "
    "into steps"
)

data_schema, input_fn = series_schema, series
loss = keras.losses.MeanSquaredError()


def custom_model():
    inputs = keras.Input((6, 3))
    x = keras.layers.MultiHeadAttention(2, 4)(inputs, inputs, use_causal_mask=True)
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.add([x, inputs]))
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def optimizer():
    return keras.optimizers.Adam(0.01)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
