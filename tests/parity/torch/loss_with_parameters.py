"""A loss with its own parameters."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Losses"
EXPECT = "refused: the optimizer receives only the parameters of the model; move them there"
REFUSAL = "has parameters of its own"

data_schema, input_fn = table_schema, numbers


class Uncertain(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(1))

    def forward(self, outputs, labels):
        error = (outputs - labels).square().mean()
        return error * torch.exp(-self.log_variance).sum() + self.log_variance.sum()


loss = Uncertain()


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


def plain(data):
    model, criterion = custom_model(), Uncertain()
    both = [*model.parameters(), *criterion.parameters()]
    return loop(data, model, optimizer(both), criterion, input_fn)
