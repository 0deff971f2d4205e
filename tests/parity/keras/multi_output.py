"""Several outputs with loss weights."""

import keras
from shared import classes, fit, numbers, table_schema

GROUP = "Models"

data_schema = table_schema


def input_fn(records):
    x, number = numbers(records)
    return x, {"number": number, "kind": classes(records)[1]}


def loss(labels, predictions):
    number = keras.losses.mean_squared_error(labels["number"], predictions["number"])
    kind = keras.losses.sparse_categorical_crossentropy(
        labels["kind"], predictions["kind"], from_logits=True
    )
    return 0.7 * number + 0.3 * kind


def custom_model():
    inputs = keras.Input((8,))
    x = keras.layers.Dense(6, activation="tanh")(inputs)
    outputs = {"number": keras.layers.Dense(1)(x), "kind": keras.layers.Dense(3)(x)}
    return keras.Model(inputs, outputs)


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    losses = {
        "number": "mse",
        "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    }
    model.compile(optimizer(), losses, loss_weights={"number": 0.7, "kind": 0.3})
    history, model = fit(data, model, input_fn)
    return {name: history[name] for name in ("loss", "val_loss")}, model
