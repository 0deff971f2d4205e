"""A base quantized to int8, with LoRA."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Transfer learning"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    model = mlp()
    model.layers[0].quantize("int8")
    model.layers[0].enable_lora(2)
    return model


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
