"""`np.random` and `random` in `forward`."""

import random

import numpy as np
import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Layers"
EXPECT = "differs: random draws are a function of (seed, step, worker), not of a generator's state"
KILLED = True

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class LayerDrop(nn.Module):
    """Leaves a layer out by chance, and adds noise to the input."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        if self.training:
            x = x + torch.tensor(np.random.normal(size=x.shape), dtype=x.dtype)  # noqa: NPY002
        if not self.training or random.random() < 0.5:
            x = x + torch.relu(self.inner(x))
        return self.out(x)


def custom_model():
    return LayerDrop()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
