"""An optimizer that overrides `zero_grad`, to keep half of the last gradient."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Optimizers"
EXPECT = (
    "refused: gradients are None at the start of each update, also on workers and after a resume, "
    "so there would be nothing to keep"
)
REFUSAL = r"zero_grad\(\) of Opt leaves gradients"
data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Opt(torch.optim.SGD):
    """Keeps half of the last gradient: a momentum of its own."""

    def zero_grad(self, set_to_none=True):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is not None:
                    p.grad.mul_(0.5)


def custom_model():
    return net()


def optimizer(parameters):
    return Opt(parameters, lr=0.05)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
