"""An optimizer that accumulates gradients: `step` and `zero_grad` act after every fourth batch."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Optimizers"
EXPECT = (
    "refused: gradients are None at the start of each update; accumulate with "
    "`--global_batch_size`, or in the state of the optimizer"
)
REFUSAL = r"zero_grad\(\) of Accumulating leaves gradients"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Accumulating(torch.optim.SGD):
    def __init__(self, params, lr):
        super().__init__(params, lr=lr, momentum=0.9)
        self.calls = 0

    def step(self, closure=None):
        self.calls += 1
        return super().step() if self.calls % 4 == 0 else None

    def zero_grad(self, set_to_none=True):
        if self.calls % 4 == 0:
            super().zero_grad(set_to_none)


def custom_model():
    return net()


def optimizer(parameters):
    return Accumulating(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
