"""nn.Embedding with padding_idx."""

import torch
from shared import loop, tokens, tokens_schema
from torch import nn

GROUP = "Layers"

data_schema, input_fn = tokens_schema, tokens
loss = nn.MSELoss()


def custom_model():
    return nn.Sequential(nn.Embedding(20, 4, padding_idx=0), nn.Flatten(), nn.Linear(40, 1))


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.02)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
