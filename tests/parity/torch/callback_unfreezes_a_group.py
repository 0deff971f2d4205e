"""A callback that unfreezes a layer as a new parameter group."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Unfreeze:
    def on_epoch_begin(self, epoch):
        if epoch == 1:
            self.model[0].requires_grad_(True)
            self.optimizer.add_param_group({"params": self.model[0].parameters(), "lr": 0.01})


def custom_model():
    model = net()
    model[0].requires_grad_(False)
    return model


def optimizer(parameters):
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return torch.optim.Adam(trained, lr=0.02)


def callbacks():
    return [Unfreeze()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, callbacks=callbacks())
