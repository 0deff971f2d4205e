"""Random features whose orthogonal matrix is redrawn every four steps (Performer)."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Parameters and buffers"
EXPECT = "differs: random draws are a function of (seed, step), not of a generator's state"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class RandomFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("projection", torch.linalg.qr(torch.randn(8, 8))[0])
        self.register_buffer("calls", torch.tensor(0))
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        if self.training:
            if self.calls >= 4:
                self.projection.copy_(torch.linalg.qr(torch.randn(8, 8))[0])
                self.calls.zero_()
            self.calls += 1
        return self.head(torch.cos(x @ self.projection))


def custom_model():
    return RandomFeatures()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
