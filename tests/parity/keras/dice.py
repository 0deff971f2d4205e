"""Dice."""

import keras
from shared import fit, table_schema, yes_or_no

GROUP = "Losses"
EXPECT = {"workers": "refused: it is a ratio of sums over the batch, not a mean over examples"}
REFUSAL = "mean over the batch|whole batch|loss of a batch"

data_schema, input_fn = table_schema, yes_or_no
loss = keras.losses.Dice()


def custom_model():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, activation="sigmoid")])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
