"""A learning rate per layer, lower for earlier layers, and a layer norm without weight decay."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Optimizers"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh())
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.body(x))


def custom_model():
    return Net()


def optimizer(model):
    groups = [{"params": model.head.parameters(), "lr": 0.05}]
    for layer in model.body:
        decay = 0.0 if isinstance(layer, nn.LayerNorm) else 0.1
        if members := list(layer.parameters()):
            groups.append({"params": members, "lr": 0.01, "weight_decay": decay})
    return torch.optim.AdamW(groups)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model), loss, input_fn)
