"""A module with `get_extra_state`: a Python number in its `state_dict`."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Parameters and buffers"
EXPECT = "refused: checkpoints do not hold extra state; make the number a buffer"
REFUSAL = r"Warm \(the model\) keeps extra state"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Warm(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net()
        self.seen = 0

    def get_extra_state(self):
        return {"seen": self.seen}

    def set_extra_state(self, state):
        self.seen = state["seen"]

    def forward(self, x):
        if self.training:
            self.seen += 1
            x = x * min(1.0, self.seen / 10)
        return self.inner(x)


def custom_model():
    return Warm()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
