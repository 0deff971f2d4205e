"""nn.LayerNorm, nn.RMSNorm, nn.GroupNorm."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Layers"
EXPECT = {"two workers": "equal within 1e-4: consecutive normalizations amplify rounding errors"}

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return nn.Sequential(
        nn.Linear(8, 6), nn.LayerNorm(6), nn.RMSNorm(6), nn.GroupNorm(2, 6), nn.Linear(6, 1)
    )


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
