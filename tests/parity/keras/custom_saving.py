"""Layers that save themselves (Keras guide): a build config, their own variables, assets."""

from pathlib import Path

import keras
import numpy as np
from shared import fit, table_schema, yes_or_no

GROUP = "Custom layers"

data_schema, input_fn = table_schema, yes_or_no
loss = keras.losses.BinaryCrossentropy()


@keras.saving.register_keras_serializable(package="my_custom_package")
class LayerWithCustomBuild(keras.layers.Layer):
    def __init__(self, units=32, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def call(self, inputs):
        return keras.ops.matmul(inputs, self.w) + self.b

    def get_config(self):
        return dict(units=self.units, **super().get_config())

    def build(self, input_shape, layer_init="random_uniform"):
        self.input_shape_ = input_shape
        self.w = self.add_weight(
            shape=(input_shape[-1], self.units), initializer=layer_init, trainable=True
        )
        self.b = self.add_weight(shape=(self.units,), initializer=layer_init, trainable=True)
        self.layer_init = layer_init

    def get_build_config(self):
        return {"layer_init": self.layer_init, "input_shape": self.input_shape_}

    def build_from_config(self, config):
        self.build(config["input_shape"], config["layer_init"])


@keras.saving.register_keras_serializable(package="my_custom_package")
class LayerWithCustomVariable(keras.layers.Dense):
    def __init__(self, units, **kwargs):
        super().__init__(units, **kwargs)
        self.custom_variable = keras.Variable(
            np.random.random((units,)),  # noqa: NPY002 - as the guide does
            name="custom_variable",
            dtype="float32",
        )

    def save_own_variables(self, store):
        super().save_own_variables(store)
        # Stores the value of the variable upon saving
        store["variables"] = self.custom_variable.numpy()

    def load_own_variables(self, store):
        # Assigns the value of the variable upon loading
        self.custom_variable.assign(store["variables"])
        # Load the remaining weights
        for i, v in enumerate(self.weights):
            v.assign(store[f"{i}"])

    def call(self, inputs):
        dense_out = super().call(inputs)
        return dense_out + self.custom_variable


@keras.saving.register_keras_serializable(package="my_custom_package")
class LayerWithCustomAssets(keras.layers.Layer):
    def __init__(self, vocab=None, **kwargs):
        super().__init__(**kwargs)
        self.vocab = vocab

    def save_assets(self, inner_path):
        # Writes the vocab (sentence) to text file at save time.
        with Path(inner_path, "vocabulary.txt").open("w") as f:
            f.write(self.vocab)

    def load_assets(self, inner_path):
        # Reads the vocab (sentence) from text file at load time.
        with Path(inner_path, "vocabulary.txt").open() as f:
            text = f.read()
        self.vocab = text.replace("<unk>", "little")

    def call(self, inputs):
        return inputs * (1.0 + 0.1 * len((self.vocab or "").split()))


def custom_model():
    custom_layer = LayerWithCustomBuild(units=16)
    custom_layer.build(input_shape=(None, 8), layer_init="random_normal")
    return keras.Sequential(
        [
            keras.Input((8,)),
            custom_layer,
            LayerWithCustomAssets(vocab="Mary had a <unk> lamb."),
            LayerWithCustomVariable(4, activation="tanh"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def optimizer():
    return keras.optimizers.Adam(0.01)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
