"""Labels per time step, padded to the longest of the batch, with `ignore_index`."""

import torch
from shared import loop, next_tokens, tokens_schema
from torch import nn
from torch.nn import functional

GROUP = "Sequences"

data_schema, input_fn = tokens_schema, next_tokens


def custom_model():
    return nn.Sequential(nn.Embedding(20, 6), nn.Linear(6, 20))


def loss(outputs, labels):
    return functional.cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=0)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.5)


def plain(data):
    model = custom_model()

    def count(labels):
        return (labels != 0).sum().item()

    return loop(data, model, optimizer(model.parameters()), loss, input_fn, count=count)
