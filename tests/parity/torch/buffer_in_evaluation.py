"""A buffer that `forward` also changes in evaluation."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Parameters and buffers"
EXPECT = (
    "refused: in a plain script, validation changes the buffer, and training continues with the "
    "changed value; here, workers share validation, which changes nothing"
)
REFUSAL = r"Net \(the model\) changes its calls where it is called in evaluation"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net()
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        self.calls += 1
        return self.inner(x) / (1.0 + 0.02 * self.calls)


def custom_model():
    return Net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
