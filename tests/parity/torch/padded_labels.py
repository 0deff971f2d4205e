"""Labels per time step, padded to the longest of the batch, that count in the loss."""

import torch
from shared import loop, next_tokens, tokens_schema
from torch import nn
from torch.nn import functional

GROUP = "Sequences"
EXPECT = {
    "two workers": "differs: the loss divides by the number of time steps, padding included, and "
    "each worker pads its own minibatch; a warning in the log says so. `ignore_index` or a fixed "
    "length gives equal numbers"
}

data_schema, input_fn = tokens_schema, next_tokens


def custom_model():
    return nn.Sequential(nn.Embedding(20, 6), nn.Linear(6, 20))


def loss(outputs, labels):
    return functional.cross_entropy(outputs.flatten(0, 1), labels.flatten())


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.5)


def plain(data):
    model = custom_model()
    count = torch.numel
    return loop(data, model, optimizer(model.parameters()), loss, input_fn, count=count)
