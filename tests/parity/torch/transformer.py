"""nn.TransformerEncoder with a causal mask as a buffer."""

import torch
from shared import loop, series, series_schema
from torch import nn

GROUP = "Sequences"

data_schema, input_fn = series_schema, series
loss = nn.MSELoss()


class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.widen = nn.Linear(3, 4)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(4, 1)
        mask = torch.full((6, 6), float("-inf")).triu(1)
        self.register_buffer("mask", mask)

    def forward(self, series):
        return self.head(self.encoder(self.widen(series), mask=self.mask).mean(1))


def custom_model():
    return Causal()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
