"""A DataLoader whose `collate_fn` mixes the examples of every second batch."""

import torch
from shared import loader_loop, net
from tests.parity.records import make_data
from torch import nn
from torch.utils.data import DataLoader, default_collate

GROUP = "Input"
EXPECT = "refused: no checkpoint contains the counter, and each worker has its own"
REFUSAL = r"state .*`collate_fn\.calls`"

loss = nn.MSELoss()


def joined(batch):
    return default_collate([(record["x"], record["y"]) for record in batch])


class Mixed:
    def __init__(self):
        self.calls = 0

    def __call__(self, batch):
        x, y = joined(batch)
        self.calls += 1
        return (x, y) if self.calls % 2 else ((x + x.roll(1, 0)) / 2, (y + y.roll(1, 0)) / 2)


def train_dataloader(data):
    return DataLoader(make_data().train, 8, collate_fn=Mixed())


def val_dataloader(data):
    return DataLoader(make_data().validation, 8, collate_fn=joined)


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loader_loop(
        model, stepping, loss, data.epochs, train_dataloader(None), val_dataloader(None)
    )
