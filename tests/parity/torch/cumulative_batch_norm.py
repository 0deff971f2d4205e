"""BatchNorm with momentum=None (a cumulative average), one of them frozen in `train`."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Layers"
EXPECT = {
    "two workers": "differs: each worker normalizes with the statistics of its own minibatch",
}

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.BatchNorm1d(8)
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 1)
        self.norm = nn.BatchNorm1d(6, momentum=None)

    def train(self, mode=True):
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(self.frozen(x)))))


def custom_model():
    return Net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
