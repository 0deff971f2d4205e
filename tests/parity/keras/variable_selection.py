"""Gated residual networks and variable selection by a softmax (Keras example for tables)."""

import warnings

import keras
import numpy as np
from keras import layers, ops
from shared import fit, table_schema, yes_or_no

GROUP = "Models"

data_schema = table_schema
loss = keras.losses.BinaryCrossentropy()
NAMES = ("age", "wage", "weeks")


def input_fn(records):
    x, y = yes_or_no(records)
    features = {name: x[:, i] for i, name in enumerate(NAMES)}
    return features | {"sector": np.int64(x[:, 3] > 0) + np.int64(x[:, 4] > 0)}, y


class GatedLinearUnit(layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.linear, self.sigmoid = layers.Dense(units), layers.Dense(units, "sigmoid")

    def call(self, inputs):
        return self.linear(inputs) * self.sigmoid(inputs)


class GatedResidualNetwork(layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.units = units
        self.elu_dense, self.linear_dense = layers.Dense(units, "elu"), layers.Dense(units)
        self.gate, self.norm = GatedLinearUnit(units), layers.LayerNormalization()
        self.project = layers.Dense(units)

    def call(self, inputs):
        x = self.gate(self.linear_dense(self.elu_dense(inputs)))
        if inputs.shape[-1] != self.units:
            inputs = self.project(inputs)
        return self.norm(inputs + x)


class VariableSelection(layers.Layer):
    def __init__(self, num_features, units):
        super().__init__()
        self.grns = [GatedResidualNetwork(units) for _ in range(num_features)]
        self.concat, self.softmax = (
            GatedResidualNetwork(units),
            layers.Dense(num_features, "softmax"),
        )

    def call(self, inputs):
        weights = ops.expand_dims(self.softmax(self.concat(ops.concatenate(inputs, -1))), -1)
        x = ops.stack([grn(x) for grn, x in zip(self.grns, inputs, strict=True)], axis=1)
        return ops.squeeze(ops.matmul(ops.transpose(weights, (0, 2, 1)), x), axis=1)


def custom_model():
    inputs = {name: keras.Input((1,), name=name) for name in NAMES}
    sector = keras.Input((1,), name="sector", dtype="int64")
    encoded = [layers.Dense(6)(each) for each in inputs.values()]
    encoded.append(layers.Flatten()(layers.Embedding(3, 6)(sector)))
    with warnings.catch_warnings():
        # Keras warns of layers within a layer that has no build().
        warnings.simplefilter("ignore")
        x = VariableSelection(len(encoded), 6)(encoded)
    return keras.Model(inputs | {"sector": sector}, layers.Dense(1, "sigmoid")(x))


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.BinaryAccuracy()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=[keras.metrics.BinaryAccuracy(name="accuracy")])
    return fit(data, model, input_fn)
