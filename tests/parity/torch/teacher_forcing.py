"""Scheduled sampling: a decoder with a share of teacher forcing that a Python object decays."""

import torch
from shared import loop, series_schema
from shared import series as rows
from torch import nn

GROUP = "Sequences"
EXPECT = "refused: no checkpoint holds the number in the object; make it a buffer of the model"
REFUSAL = r"the attribute share of the model changes with every call"

data_schema, input_fn = series_schema, rows
loss = nn.MSELoss()


class Decay:
    """A share that gets smaller with each call."""

    def __init__(self, rate):
        self.rate, self.value = rate, 1.0

    def __call__(self):
        self.value *= self.rate
        return self.value


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(3, 5), nn.Linear(5, 3)
        self.last = nn.Linear(3, 1)
        self.share = Decay(0.9)

    def forward(self, series):
        share = self.share() if self.training else 0.0
        hidden = series.new_zeros(len(series), 5)
        guess = series[:, 0]
        for moment in range(series.shape[1]):
            given = share * series[:, moment] + (1 - share) * guess
            hidden = self.cell(given, hidden)
            guess = self.head(hidden)
        return self.last(guess)


def custom_model():
    return Decoder()


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
