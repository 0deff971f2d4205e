"""SwapEMAWeights."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Weight averages"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8)


def callbacks():
    return [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
