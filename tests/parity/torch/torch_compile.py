"""torch.compile."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Models"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Compiled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net()
        self.fast = torch.compile(self.inner, backend="aot_eager")

    def forward(self, x):
        return self.fast(x)


def custom_model():
    return Compiled()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
