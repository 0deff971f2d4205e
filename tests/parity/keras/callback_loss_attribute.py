"""A callback that sets an attribute of a loss object as training begins."""

import keras
from shared import FocalLoss, classes, fit, mlp, table_schema

GROUP = "Callbacks"
EXPECT = (
    "refused: the step is compiled with the loss as the file creates it; make the attribute a "
    "variable that the callback holds"
)
REFUSAL = r"on_train_begin\(\) changes gamma of focal_loss"

data_schema, input_fn = table_schema, classes


class Anneal(keras.callbacks.Callback):
    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def on_train_begin(self, logs=None):
        self.loss.gamma = 0.5


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
