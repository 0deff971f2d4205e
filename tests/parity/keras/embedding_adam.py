"""Embedding trained with Adam."""

import keras
from shared import fit, tokens, tokens_schema

GROUP = "Sequences"
EXPECT = {
    "workers": "differs: Keras squares the gradient of each occurrence of an id; workers square "
    "their sum"
}

data_schema, input_fn = tokens_schema, tokens
loss = keras.losses.MeanSquaredError()


def custom_model():
    return keras.Sequential(
        [
            keras.Input((10,), dtype="int64"),
            keras.layers.Embedding(20, 4),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.Adam(0.02)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
