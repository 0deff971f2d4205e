"""A detached hidden state carried from batch to batch in an attribute (truncated BPTT)."""

import torch
from shared import loop, series, series_schema
from torch import nn

GROUP = "Sequences"
EXPECT = "refused: a state cannot be carried from batch to batch if workers share the batches"
REFUSAL = "hidden"

data_schema, input_fn = series_schema, series
loss = nn.MSELoss()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 1)
        self.hidden = None

    def forward(self, x):
        hidden = self.hidden
        if hidden is None or hidden[0].shape[1] != len(x):
            hidden = (x.new_zeros(1, len(x), 4), x.new_zeros(1, len(x), 4))
        outputs, hidden = self.lstm(x, hidden)
        if self.training:
            self.hidden = tuple(state.detach() for state in hidden)
        return self.out(outputs[:, -1])


def custom_model():
    return Net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
