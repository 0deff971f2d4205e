"""CSVLogger that appends to an older file."""

import csv
import os
from pathlib import Path

import keras
import numpy as np
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()
FOLDER = Path(os.environ["PARITY_FILES"])


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    file = FOLDER / "log.csv"
    if not file.exists():
        file.write_text("epoch,loss,val_loss\r\n7,0.5,0.25\r\n")
    return [keras.callbacks.CSVLogger(file, append=True)]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())


def read_files(folder):
    with (folder / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {name: np.float64([row[name] for row in rows]) for name in rows[0]}
