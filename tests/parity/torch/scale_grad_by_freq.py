"""nn.Embedding with scale_grad_by_freq."""

import torch
from shared import loop, tokens, tokens_schema
from torch import nn

GROUP = "Layers"
EXPECT = {
    "workers": "refused: gradients are divided by how often an id occurs in the minibatch, not in "
    "the update"
}
REFUSAL = "scale_grad_by_freq=True"

data_schema, input_fn = tokens_schema, tokens
loss = nn.MSELoss()


def custom_model():
    return nn.Sequential(
        nn.Embedding(20, 4, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(40, 1)
    )


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
