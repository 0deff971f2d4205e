"""Sample weights for each time step."""

import keras
import numpy as np
from shared import named, series_schema

GROUP = "Sample and class weights"

data_schema = series_schema
loss = keras.losses.MeanSquaredError()


def input_fn(records):
    x = np.stack([record["series"] for record in records])
    return x, x.sum(axis=2, keepdims=True), np.abs(x[:, :, 1])


def custom_model():
    inputs = keras.Input((6, 3))
    x = keras.layers.GRU(4, return_sequences=True)(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {"mae": keras.metrics.MeanAbsoluteError()}


def weighted_metrics_fn():
    return {"weighted_mse": keras.metrics.MeanSquaredError()}


def plain(data):
    model = custom_model()
    model.compile(
        optimizer(),
        loss,
        metrics=named(eval_metrics_fn()),
        weighted_metrics=named(weighted_metrics_fn()),
    )
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
