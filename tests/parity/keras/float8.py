"""float8 (`layer.quantize("float8")`)."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Number formats"
EXPECT = {"workers": "refused: its scales depend on maxima over the whole batch"}
REFUSAL = "overwrite_with_gradient"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    model = mlp()
    for layer in model.layers:
        layer.quantize("float8")
    return model


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
