"""BackupAndRestore."""

from pathlib import Path

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"
KILLED = True

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    return [keras.callbacks.BackupAndRestore(str(Path(__file__).parent / "backup"))]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
