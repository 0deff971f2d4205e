"""Quantization-aware training: FakeQuantize with a moving average of minima and maxima."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

GROUP = "Parameters and buffers"
EXPECT = (
    "refused: in a plain script, validation changes the buffer, and training continues with the "
    "changed value; here, workers share validation, which changes nothing"
)
REFUSAL = r"FakeQuantize \(fq\) changes its scale where it is called in evaluation mode"
data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net()
        self.fq = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255)

    def forward(self, x):
        return self.inner(self.fq(x))


def custom_model():
    return Net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
