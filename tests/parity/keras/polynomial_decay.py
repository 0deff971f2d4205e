"""PolynomialDecay."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Learning rate schedules"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp()


def optimizer():
    rate = keras.optimizers.schedules.PolynomialDecay(0.1, 15, 0.01, power=2.0)
    return keras.optimizers.SGD(rate, momentum=0.5)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
