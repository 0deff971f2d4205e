"""A cross entropy of one's own under mixed_bfloat16: `fit` casts the outputs to float32."""

import keras
from keras import layers, ops
from shared import classes, fit, table_schema

GROUP = "Number formats"
EXPECT = {
    "two workers": "equal within 1e-2: two halves of a batch round to bfloat16 differently from "
    "the whole"
}

data_schema, input_fn = table_schema, classes


def loss(labels, outputs):
    hot = ops.one_hot(ops.cast(labels, "int32"), 3, dtype=outputs.dtype)
    return -ops.sum(hot * ops.log(outputs + 1e-8), axis=-1)


def custom_model():
    keras.config.set_dtype_policy("mixed_bfloat16")
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(6, activation="tanh"),
            layers.Dense(3, activation="softmax"),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
