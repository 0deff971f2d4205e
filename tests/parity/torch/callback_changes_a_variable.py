"""A callback that changes a variable of the file that the loss reads."""

import torch
from shared import loop, net, numbers, table_schema
from torch.nn import functional

GROUP = "Callbacks"
EXPECT = "refused: no checkpoint holds variables of the file"
REFUSAL = "changed DELTA"

data_schema, input_fn = table_schema, numbers
DELTA = 1.0


def loss(labels, predictions):
    return functional.huber_loss(predictions, labels, delta=DELTA)


class Sharpen:
    def on_epoch_begin(self, epoch):
        global DELTA  # noqa: PLW0603 - the feature
        DELTA = 1.0 if epoch == 0 else 0.1


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def callbacks():
    return [Sharpen()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, lambda x, y: loss(y, x), input_fn, callbacks=callbacks())
