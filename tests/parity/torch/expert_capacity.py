"""Experts with a capacity that a whole minibatch reaches, but no half of it can."""

import torch
from shared import loop, numbers, table_schema
from torch import nn
from torch.nn import functional

GROUP = "Models"
EXPECT = {"workers": "refused: half of a minibatch never reaches the capacity"}
REFUSAL = "depend on the other examples of its batch"

NUM_EXPERTS, CAPACITY = 3, 5

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.route = nn.Linear(8, NUM_EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(8, 4) for _ in range(NUM_EXPERTS))
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        shares = self.route(x).softmax(-1)
        chosen = functional.one_hot(shares.argmax(-1), NUM_EXPERTS)
        served = chosen * (chosen.cumsum(0) <= CAPACITY)
        outputs = torch.stack([torch.tanh(expert(x)) for expert in self.experts], 1)
        return self.head(torch.einsum("be,beo->bo", shares * served, outputs))


def custom_model():
    return Experts()


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.02)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
