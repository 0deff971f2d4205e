"""A callback that replaces a layer."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Callbacks"
EXPECT = "refused: no checkpoint holds it; create all layers in the model and choose in `forward`"
REFUSAL = r"a callback changed the modules of the trained model in on_epoch_begin"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Replace:
    def on_epoch_begin(self, epoch):
        if epoch == 1:
            self.model[2] = nn.Linear(6, 1)


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def callbacks():
    return [Replace()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, callbacks=callbacks())
