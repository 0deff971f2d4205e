"""nn.CircularPad1d, nn.AvgPool1d: convolutions of a periodic series."""

import torch
from shared import loop, series, series_schema
from torch import nn

GROUP = "Layers"

data_schema, input_fn = series_schema, series
loss = nn.MSELoss()


class Round(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.CircularPad1d(1), nn.Conv1d(3, 6, 3), nn.GELU(),
            nn.CircularPad1d((2, 1)), nn.Conv1d(6, 6, 4), nn.GELU(),
            nn.AvgPool1d(3),
        )  # fmt: skip
        self.head = nn.Linear(12, 1)

    def forward(self, series):
        return self.head(self.body(series.transpose(1, 2)).flatten(1))


def custom_model():
    return Round()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
