"""ModelCheckpoint."""

import tempfile
from pathlib import Path

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    path = Path(tempfile.mkdtemp()) / "best.weights.h5"
    return [
        keras.callbacks.ModelCheckpoint(
            str(path), monitor="val_loss", save_best_only=True, save_weights_only=True
        )
    ]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
