"""A callback that saves the model."""

import os
from pathlib import Path

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()
FOLDER = Path(os.environ["PARITY_FILES"])


class Saving(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.save_weights(FOLDER / "first.weights.h5", overwrite=True)

    def on_epoch_end(self, epoch, logs=None):
        self.model.save(FOLDER / f"{epoch}.keras", overwrite=True)


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    return [Saving()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())


def read_files(folder):
    found = {}
    for file in sorted(folder.iterdir()):
        model = custom_model()
        if file.suffix == ".keras":
            model = keras.saving.load_model(file)
            found[f"{file.name} step"] = model.optimizer.iterations.numpy()
        else:
            model.load_weights(file)
        found |= {f"{file.name} {i}": array for i, array in enumerate(model.get_weights())}
    return found
