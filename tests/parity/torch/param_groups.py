"""Parameter groups."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Optimizers"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    weights = [p for p in parameters if p.ndim > 1]
    biases = [p for p in parameters if p.ndim == 1]
    return torch.optim.AdamW(
        [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}],
        lr=0.01,
    )


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(list(model.parameters())), loss, input_fn)
