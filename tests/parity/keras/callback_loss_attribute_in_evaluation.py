"""A callback that sets an attribute of a loss before the first validation, which reads it."""

import keras
from keras import ops
from shared import classes, fit, mlp, table_schema

GROUP = "Callbacks"
KILLED = True

data_schema, input_fn = table_schema, classes


class FocalLoss(keras.losses.Loss):
    def __init__(self, gamma=2.0):
        super().__init__()
        self.gamma = gamma

    def call(self, y_true, y_pred):
        p = ops.sum(ops.softmax(y_pred) * ops.one_hot(ops.cast(y_true, "int32"), 3), -1)
        return -((1 - p) ** self.gamma) * ops.log(p)


class Anneal(keras.callbacks.Callback):
    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def on_train_batch_end(self, batch, logs=None):
        self.loss.gamma *= 0.9


loss = FocalLoss()


def custom_model():
    return mlp(3)


def optimizer():
    return keras.optimizers.SGD(0.3)


def callbacks():
    return [Anneal(loss)]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
