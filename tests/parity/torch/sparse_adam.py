"""Sparse embeddings with SparseAdam."""

import torch
from shared import loop, tokens, tokens_schema
from torch import nn

GROUP = "Optimizers"

data_schema, input_fn = tokens_schema, tokens
loss = nn.MSELoss()


def custom_model():
    return nn.EmbeddingBag(20, 1, sparse=True)


def optimizer(parameters):
    return torch.optim.SparseAdam(list(parameters), lr=0.02)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
