"""A hook on a tensor in `forward` that scales its gradient."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Gradients"
EXPECT = {
    "two workers": "differs: the gradient is divided by a norm over the batch, and each worker "
    "sees its own minibatch"
}

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 1)

    def forward(self, x):
        x = self.first(x)
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient / (gradient.norm() + 1e-6))
        return self.last(torch.tanh(x))


def custom_model():
    return Net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
