"""TensorBoard with `update_freq`."""

import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"
EXPECT = {
    "two workers": "differs: `evaluation_` points are written after every third batch of an "
    "evaluation, and each worker evaluates its own batches"
}
SAME_WEIGHTS = True

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()
FOLDER = Path(os.environ["PARITY_FILES"])


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    return [keras.callbacks.TensorBoard(FOLDER, update_freq=3, histogram_freq=1)]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())


def read_files(folder):
    points = set()
    for file in folder.rglob("*tfevents*"):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    number = float(tf.make_ndarray(value.tensor))
                    points.add((f"{file.parent.name} {value.tag}", event.step, number))
    names = {name for name, _, _ in points}
    return {n: np.float64(sorted((step, y) for m, step, y in points if m == n)) for n in names}
