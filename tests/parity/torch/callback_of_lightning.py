"""A callback with Lightning's method names."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Callbacks"
EXPECT = "refused: callbacks have the method names of Keras; rename its methods"
REFUSAL = r"has on_train_epoch_end\(\), which would not be called. There is on_epoch_end\(\)"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Callback:
    """As Lightning's."""

    def on_train_epoch_end(self, trainer, module):
        pass


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def callbacks():
    return [Callback()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, callbacks=callbacks())
