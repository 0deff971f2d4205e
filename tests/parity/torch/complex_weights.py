"""Complex parameters and buffers."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Number formats"
EXPECT = {"workers": "refused: workers sum real numbers only"}
REFUSAL = "complex numbers"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.phase = nn.Parameter(torch.full((8,), 0.5 + 0.5j, dtype=torch.complex64))
        self.register_buffer("mean", torch.zeros(8, dtype=torch.complex64))

    def forward(self, features):
        waves = features * self.phase + 0.1j
        if self.training:
            self.mean.lerp_(waves.mean(0).detach(), 0.1)
        return (waves - self.mean).abs()


def custom_model():
    return nn.Sequential(Waves(), nn.Linear(8, 1))


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
