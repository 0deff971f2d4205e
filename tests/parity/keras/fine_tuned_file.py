"""Fine-tuning a trained `.keras` file with a registered layer, loaded with `compile=False`."""

import tempfile
from pathlib import Path

import keras
import numpy as np
from shared import fit, numbers, table_schema

GROUP = "Transfer learning"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


@keras.saving.register_keras_serializable("parity")
class Gain(keras.layers.Layer):
    def build(self, shape):
        self.gain = self.add_weight(shape=(shape[-1],), initializer="ones", name="gain")

    def call(self, x):
        return x * self.gain


def custom_model():
    base = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(6, activation="tanh"),
            Gain(),
            keras.layers.Dense(1),
        ]
    )
    base.compile("adam", "mae", metrics=["mse"], loss_weights=[3.0])
    x = np.linspace(-1, 1, 64, dtype="float32").reshape(8, 8)
    for _ in range(3):
        base.train_on_batch(x, x[:, :1])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "base.keras"
        base.save(file)
        return keras.saving.load_model(file, compile=False)


def optimizer():
    return keras.optimizers.Adam(0.01)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
