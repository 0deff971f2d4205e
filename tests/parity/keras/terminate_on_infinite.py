"""TerminateOnNaN when the loss becomes infinite."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"
EXPECT = (
    "refused: the job ends and keeps the last good checkpoint; `fit` would return the ruined model"
)
REFUSAL = "loss .* (NaN|infinite|inf|nan)"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(1e12)


def callbacks():
    return [keras.callbacks.TerminateOnNaN()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
