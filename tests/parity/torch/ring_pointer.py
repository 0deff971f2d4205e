"""A position in a ring buffer of features of earlier examples (MoCo, NNCLR)."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Parameters and buffers"
EXPECT = {
    "workers": "refused: the changes of a position in a ring buffer do not add up over workers",
}
REFUSAL = "pointer"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Ring(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.pointer.copy_((self.pointer + len(x)) % 13)
        return self.net(x) + 0.01 * self.pointer


def custom_model():
    return Ring()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
