"""nn.MultiheadAttention trained with Adam: the bias of the keys."""

import torch
from shared import loop, series, series_schema
from torch import nn
from torch.nn import functional

GROUP = "Sequences"
EXPECT = {
    "workers": "differs: the bias of the keys has no effect; its gradient is rounding error, which "
    "Adam turns into steps"
}

data_schema, input_fn = series_schema, series
loss = nn.MSELoss()


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.widen, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, series):
        x = self.widen(series)
        x = functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        return self.head(self.attention(x, x, x)[0].mean(1))


def custom_model():
    return Attending()


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
