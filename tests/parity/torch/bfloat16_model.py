"""A bfloat16 model."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Number formats"
EXPECT = {
    "two workers": "equal within 0.05: bfloat16 has eight significant bits, and two halves of a "
    "batch round differently from the whole"
}

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Rough(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net().bfloat16()

    def forward(self, x):
        return self.inner(x.bfloat16()).float()


def custom_model():
    return Rough()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
