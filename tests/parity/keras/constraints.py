"""Constraints (MaxNorm, NonNeg, UnitNorm)."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Regularization"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(
                6,
                kernel_constraint=keras.constraints.MaxNorm(0.5),
                bias_constraint="non_neg",
            ),
            keras.layers.Dense(6, kernel_constraint=keras.constraints.UnitNorm()),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
