"""One loss per output, and `loss_weights`."""

import keras
from shared import classes, fit, numbers, table_schema

GROUP = "Losses"
EXPECT = "refused: write one function that adds up the losses"
REFUSAL = "loss is a dict, not a loss"

data_schema = table_schema
loss = {
    "number": "mse",
    "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
}
loss_weights = {"number": 0.7, "kind": 0.3}


def input_fn(records):
    x, number = numbers(records)
    return x, {"number": number, "kind": classes(records)[1]}


def custom_model():
    inputs = keras.Input((8,))
    x = keras.layers.Dense(6, activation="tanh")(inputs)
    outputs = {"number": keras.layers.Dense(1)(x), "kind": keras.layers.Dense(3)(x)}
    return keras.Model(inputs, outputs)


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, loss_weights=loss_weights)
    return fit(data, model, input_fn)
