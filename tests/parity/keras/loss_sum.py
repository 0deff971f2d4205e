"""`reduction="sum"`."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Losses"
EXPECT = {"workers": "refused: workers add up means; use the default reduction"}
REFUSAL = "mean over the batch|loss of a batch"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError(reduction="sum")


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.01)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
