"""nn.LSTM, nn.GRU."""

import torch
from shared import loop, series, series_schema
from torch import nn

GROUP = "Sequences"

data_schema, input_fn = series_schema, series
loss = nn.MSELoss()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(8, 4, batch_first=True)
        self.head = nn.Linear(4, 1)

    def forward(self, series):
        _, last = self.gru(self.lstm(series)[0])
        return self.head(last[0])


def custom_model():
    return Recurrent()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
