"""Attention across the examples of a batch, in training only, with dropout (BatchFormer)."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Models"
EXPECT = {
    "one process": "differs: random draws are a function of (seed, step, worker), not of a "
    "generator's state",
    "resumed": "differs: random draws are a function of (seed, step, worker), not of a generator's "
    "state",
    "workers": "refused: each worker would attend to the examples of its own minibatch only",
}
REFUSAL = r"batch"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class BatchFormer(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 6), nn.Linear(6, 1)
        self.attention = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.5)

    def forward(self, x):
        x = torch.tanh(self.body(x))
        if self.training:
            x = self.attention(x[:, None])[:, 0]
        return self.head(x)


def custom_model():
    return BatchFormer()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
