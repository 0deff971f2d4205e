"""Metrics and sample weights for each output."""

import keras
import numpy as np
from shared import classes, numbers, table_schema

GROUP = "Models"
EXPECT = "refused: there is one loss function; it can weight its parts by values in the labels"
REFUSAL = "sample weights that are a dict"

data_schema = table_schema


def input_fn(records):
    x, number = numbers(records)
    weight = np.stack([record["weight"] for record in records])[:, 0]
    return x, {"number": number, "kind": classes(records)[1]}, {"number": weight, "kind": weight**2}


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


def eval_metrics_fn():
    return {
        "number": {"mae": keras.metrics.MeanAbsoluteError()},
        "kind": {"accuracy": keras.metrics.SparseCategoricalAccuracy()},
    }


def plain(data):
    model = custom_model()
    model.compile(
        optimizer(),
        {"number": "mse", "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        loss_weights={"number": 0.7, "kind": 0.3},
        metrics={"number": ["mae"], "kind": ["accuracy"]},
    )
    x, y, w = input_fn(data.train)
    history = model.fit(
        x, y, sample_weight=w, batch_size=data.batch_size, epochs=data.epochs, shuffle=False,
        validation_data=input_fn(data.validation), verbose=0,
    )  # fmt: skip
    return history.history, model
