"""nn.Embedding with max_norm."""

import torch
from shared import loop, tokens, tokens_schema
from torch import nn

GROUP = "Layers"
EXPECT = {
    "workers": "refused: `forward` changes weights in place, which workers would do separately",
}
REFUSAL = "weight"

data_schema, input_fn = tokens_schema, tokens
loss = nn.MSELoss()


def custom_model():
    return nn.Sequential(nn.Embedding(20, 4, max_norm=1.0), nn.Flatten(), nn.Linear(40, 1))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
