"""Average: an ensemble of loaded, frozen models and one that is trained."""

import tempfile
from pathlib import Path

import keras
from keras import layers
from shared import classes, fit, mlp, named, table_schema

GROUP = "Models"

data_schema, input_fn = table_schema, classes
loss = keras.losses.SparseCategoricalCrossentropy()


def custom_model():
    inputs = keras.Input((8,))
    outputs = []
    for number in range(3):
        member = keras.Sequential([mlp(3), layers.Softmax()], name=f"member{number}")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "member.keras"
            member.save(path)
            member = keras.models.load_model(path)
        member.trainable = number == 2
        outputs.append(member(inputs))
    return keras.Model(inputs, layers.Average()(outputs))


def optimizer():
    return keras.optimizers.SGD(0.5)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
