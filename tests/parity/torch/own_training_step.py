"""A plain module with `training_step` and `configure_optimizers`, besides loss and optimizer."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Models"
EXPECT = "refused: its training_step and configure_optimizers would not be called"
REFUSAL = "training_step"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Trained(nn.Module):
    """A module that brings its step and its optimizer."""

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

    def training_step(self, batch, batch_idx):
        x, y = batch
        return ((self(x) - y) ** 2).mean()


class Net(Trained):
    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, x):
        return self.inner(x)


def custom_model():
    return Net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
