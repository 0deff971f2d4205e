"""Sample weights."""

import keras
import numpy as np
from shared import mlp, named, numbers, table_schema

GROUP = "Sample and class weights"

loss = keras.losses.MeanSquaredError()


data_schema = table_schema


def input_fn(records):
    """Return (x, y, weight)."""
    return *numbers(records), np.concatenate([record["weight"] for record in records])


def weighted_metrics_fn():
    return {"mae": keras.metrics.MeanAbsoluteError()}


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, weighted_metrics=named(weighted_metrics_fn()))
    x, y, weights = input_fn(data.train)
    history = model.fit(
        x,
        y,
        sample_weight=weights,
        batch_size=data.batch_size,
        epochs=data.epochs,
        shuffle=False,
        validation_data=input_fn(data.validation),
        verbose=0,
    )
    return history.history, model
