"""Weights set by `model.apply(init_weights)`, and a LayerScale whose branches start at zero."""

import torch
from shared import classes, loop, table_schema
from torch import nn

GROUP = "Models"

data_schema, input_fn = table_schema, classes
loss = nn.CrossEntropyLoss()


class LayerScale(nn.Module):
    def __init__(self, size, value=1e-2):
        super().__init__()
        self.gamma = nn.Parameter(value * torch.ones(size))

    def forward(self, x):
        return self.gamma * x


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm, self.scale = nn.LayerNorm(size), LayerScale(size)
        self.net = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))
        self.rezero = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x + self.scale(self.net(self.norm(x))) + self.rezero * torch.tanh(x)


def init_weights(module):
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.2)
        nn.init.zeros_(module.bias)


def custom_model():
    model = nn.Sequential(nn.Linear(8, 6), Block(6), Block(6), nn.LayerNorm(6), nn.Linear(6, 3))
    return model.apply(init_weights)


def optimizer(named_parameters):
    named = list(named_parameters)
    return torch.optim.AdamW(
        [
            {"params": [p for _, p in named if p.ndim > 1], "weight_decay": 0.05},
            {"params": [p for _, p in named if p.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=0.01,
    )


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.named_parameters()), loss, input_fn)
