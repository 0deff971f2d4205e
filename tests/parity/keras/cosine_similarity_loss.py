"""CosineSimilarity."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Losses"

loss = keras.losses.CosineSimilarity()


data_schema = table_schema


def input_fn(records):
    x, _ = numbers(records)
    return x, x[:, ::-1] + 0.5


def custom_model():
    return mlp(8)


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
