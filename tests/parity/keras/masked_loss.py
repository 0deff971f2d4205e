"""A loss on masked time steps."""

import keras
from shared import fit, named, tokens, tokens_schema

GROUP = "Sequences"
EXPECT = {
    "two workers": "differs: the reported loss weights the mean of each worker's minibatch by its "
    "number of examples; the weights of the model are equal"
}
SAME_WEIGHTS = True

loss = keras.losses.MeanSquaredError()


data_schema = tokens_schema


def input_fn(records):
    """Return (tokens, token / 10): a number for each time step."""
    x, _ = tokens(records)
    return x, x[..., None].astype("float32") / 10


def custom_model():
    return keras.Sequential(
        [
            keras.Input((10,), dtype="int64"),
            keras.layers.Embedding(20, 4, mask_zero=True),
            keras.layers.LSTM(4, return_sequences=True),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {"mae": keras.metrics.MeanAbsoluteError()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
