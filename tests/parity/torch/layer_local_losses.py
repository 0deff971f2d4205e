"""Layers that learn from losses of their own, with one optimizer."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Losses"

data_schema, input_fn = table_schema, numbers


class LayerLocal(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 6), nn.Linear(6, 1)

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        return {"hidden": hidden, "y": self.head(hidden.detach())}


def loss(outputs, y):
    return nn.functional.mse_loss(outputs["y"], y) + (1 - outputs["hidden"].pow(2)).mean()


def custom_model():
    return LayerLocal()


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.03)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
