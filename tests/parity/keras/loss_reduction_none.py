"""`reduction=None`: one loss per example."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Losses"
EXPECT = "refused: `fit` reports the mean over the examples but minimizes their sum"
REFUSAL = "MeanSquaredError has reduction=None"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError(reduction=None)


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.01)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
