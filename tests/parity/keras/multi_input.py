"""Several inputs."""

import keras
import numpy as np
from shared import fit, series_schema, table_schema

GROUP = "Models"

loss = keras.losses.MeanSquaredError()


def data_schema():
    return [table_schema()[0], *series_schema()]


def input_fn(records):
    features = {name: np.stack([record[name] for record in records]) for name in ("x", "series")}
    return features, np.stack([record["y"] for record in records])


def custom_model():
    x, series = keras.Input((8,), name="x"), keras.Input((6, 3), name="series")
    joined = keras.layers.concatenate([x, keras.layers.Flatten()(series)])
    return keras.Model({"x": x, "series": series}, keras.layers.Dense(1)(joined))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
