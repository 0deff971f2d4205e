"""Attention across the examples of a batch, in training only (BatchFormer)."""

import keras
from keras import layers
from shared import fit, numbers, table_schema

GROUP = "Models"
EXPECT = {"workers": "refused: each worker would attend to the examples of its own minibatch only"}
REFUSAL = "batch"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class BatchFormer(keras.Model):
    def __init__(self):
        super().__init__()
        self.body, self.head = layers.Dense(6, "tanh"), layers.Dense(1)
        self.attention = layers.MultiHeadAttention(2, 3)

    def call(self, x, training=False):
        x = self.body(x)
        if training:
            x = x + self.attention(x[None], x[None])[0]
        return self.head(x)


def custom_model():
    model = BatchFormer()
    model(keras.ops.zeros((2, 8)), training=True)
    return model


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
