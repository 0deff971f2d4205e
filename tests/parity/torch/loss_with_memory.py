"""A custom loss that anneals a term by counting its calls."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Losses"
EXPECT = "refused: no checkpoint holds its count; make it a buffer of the model"
REFUSAL = r"the loss keeps state that changes with every call"

data_schema, input_fn = table_schema, numbers


class Annealed(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, output, label):
        if torch.is_grad_enabled():
            self.calls += 1
        weight = min(1.0, self.calls / 10)
        return ((output - label) ** 2).mean() + weight * output.abs().mean()


loss = Annealed()


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
