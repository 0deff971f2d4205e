"""torch.optim.swa_utils.AveragedModel in a model."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Weight averages"
EXPECT = {"workers": "refused: `forward` changes weights in place; use averaged_model(model)"}
REFUSAL = "average"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Averaging(nn.Module):
    """Holds a model and the average of its weights, updated in forward."""

    def __init__(self):
        super().__init__()
        self.inner = net()
        self.average = torch.optim.swa_utils.AveragedModel(self.inner)
        self.average.requires_grad_(requires_grad=False)

    def forward(self, x):
        if self.training:
            self.average.update_parameters(self.inner)
            return self.inner(x)
        return self.average(x)


def custom_model():
    return Averaging()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
