"""A callback that sets a variable of the file, which the loss reads, as training begins."""

import keras
from shared import classes, fit, mlp, table_schema

GROUP = "Callbacks"
EXPECT = (
    "refused: the step is compiled with the values of the file; make it a variable that the "
    "callback holds"
)
REFUSAL = r"on_train_begin\(\) changes weight of callback_sets_variable.py"

data_schema, input_fn = table_schema, classes
weight = 1.0


class SetWeight(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        global weight  # noqa: PLW0603 - what is tried
        weight = 0.25


def loss(labels, outputs):
    return weight * keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def custom_model():
    return mlp(3)


def optimizer():
    return keras.optimizers.SGD(0.3)


def callbacks():
    return [SetWeight()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
