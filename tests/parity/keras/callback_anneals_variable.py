"""A callback that changes a variable of the file, which the loss reads, after each batch."""

import keras
from shared import classes, fit, mlp, table_schema

GROUP = "Callbacks"

data_schema, input_fn = table_schema, classes
weight = 1.0


class Anneal(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        global weight  # noqa: PLW0603 - what is tried
        weight = 1 / (2 + batch)


def loss(labels, outputs):
    return weight * keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def custom_model():
    return mlp(3)


def optimizer():
    return keras.optimizers.SGD(0.3)


def callbacks():
    return [Anneal()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
