"""A layer that learns in `forward`, by an optimizer of its own (as in forward-forward)."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Parameters and buffers"
EXPECT = "refused: no checkpoint stores an optimizer of a module; add the local losses up in `loss`"
REFUSAL = r"the attribute local of the model changes with every call of `forward`"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class LayerLocal(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 6), nn.Linear(6, 1)
        self.local = torch.optim.Adam(self.body.parameters(), 0.03)

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        if self.training:
            (1 - hidden.pow(2)).mean().backward()
            self.local.step()
        return self.head(hidden.detach())


def custom_model():
    return LayerLocal()


def optimizer(model):
    return torch.optim.SGD(model.head.parameters(), lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model), loss, input_fn)
