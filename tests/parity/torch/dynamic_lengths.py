"""Batches of different sequence lengths."""

import torch
from shared import loop, tokens, tokens_schema
from torch import nn

GROUP = "Sequences"

loss = nn.MSELoss()


data_schema = tokens_schema


def input_fn(records):
    """Return (tokens as long as the longest of the batch, y)."""
    x, y = tokens(records)
    return x[:, : int((x > 0).sum(1).max())], y


def custom_model():
    return nn.EmbeddingBag(20, 1, padding_idx=0)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
