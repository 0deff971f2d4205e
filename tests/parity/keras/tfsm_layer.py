"""TFSMLayer: a SavedModel as a layer."""

import tempfile

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Transfer learning"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    with tempfile.TemporaryDirectory() as folder:
        mlp(4).export(folder, verbose=False)
        reloaded = keras.layers.TFSMLayer(folder, call_endpoint="serve")
    inputs = keras.Input((8,))
    return keras.Model(inputs, keras.layers.Dense(1)(reloaded(inputs)))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
