"""A custom layer with a running mean."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Parameters and buffers"
EXPECT = {
    "two workers": "differs: within a step, each worker uses the mean after its own minibatch only",
}

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


def custom_model():
    return nn.Sequential(Centred(), nn.Linear(8, 1))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
