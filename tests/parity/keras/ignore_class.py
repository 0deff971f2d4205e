"""`ignore_class` of SparseCategoricalCrossentropy."""

import keras
from shared import classes, fit, mlp, table_schema

GROUP = "Losses"
EXPECT = {
    "workers": "refused: it divides by the number of labels that are not ignored; use sample "
    "weights of 0 instead"
}
REFUSAL = "ignore_class=0"

data_schema, input_fn = table_schema, classes
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)


def custom_model():
    return mlp(3)


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
