"""An Embedding trained with SGD and clipnorm."""

import keras
from shared import fit, tokens, tokens_schema

GROUP = "Gradients"
EXPECT = {
    "workers": "differs: in Keras, the norm counts a separate row for each occurrence of an id; "
    "workers add these rows first"
}

data_schema, input_fn = tokens_schema, tokens
loss = keras.losses.MeanSquaredError()


def custom_model():
    return keras.Sequential(
        [
            keras.Input((10,), dtype="int64"),
            keras.layers.Embedding(20, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
