"""Labels per time step, padded to the longest of the batch, with sample weights of 0."""

import keras
import numpy as np
from shared import tokens, tokens_schema

GROUP = "Sequences"
EXPECT = {
    "two workers": "differs: Keras divides by the number of time steps, padding included, and each "
    "worker pads its own minibatch; a warning in the log says so. "
    '`reduction="mean_with_sample_weight"`, a mask or a fixed length gives equal numbers'
}

data_schema = tokens_schema
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def input_fn(records):
    """Return (tokens, the next tokens, weights), as long as the longest of the batch."""
    x, _ = tokens(records)
    x = x[:, : int((x > 0).sum(1).max())]
    return x[:, :-1], x[:, 1:], np.float32(x[:, 1:] != 0)


def custom_model():
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int64"),
            keras.layers.Embedding(20, 4),
            keras.layers.GRU(4, return_sequences=True),
            keras.layers.Dense(20),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.5)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    losses = []
    for _ in range(data.epochs):
        total = 0.0
        for first in range(0, len(data.train), data.batch_size):
            x, y, weights = input_fn(data.train[first : first + data.batch_size])
            total += float(model.train_on_batch(x, y, weights)) * len(y)
            model.reset_metrics()
        losses.append(total / len(data.train))
    return {"loss": losses}, model
