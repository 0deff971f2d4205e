"""A callback that counts in attributes of the model and a layer, which the layer saves itself."""

import keras
import numpy as np
from shared import fit, numbers, table_schema

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Damped(keras.layers.Dense):
    def __init__(self, units, **kwargs):
        super().__init__(units, **kwargs)
        self.damping = np.ones(1)

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store["damping"] = self.damping

    def load_own_variables(self, store):
        self.damping = np.array(store["damping"])
        for i, v in enumerate(self.weights):
            v.assign(store[f"{i}"])


class Damp(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        layer = self.model.layers[-1]
        layer.damping = layer.damping * 0.9
        self.model.num_damped = getattr(self.model, "num_damped", 0) + 1
        self.model.dampings.append(float(layer.damping[0]))
        factor = sum(self.model.dampings) / self.model.num_damped
        layer.kernel.assign(layer.kernel * layer.damping[0] * factor)


def custom_model():
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(4, activation="tanh"), Damped(1)]
    )
    model.dampings = []
    return model


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    return [Damp()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
