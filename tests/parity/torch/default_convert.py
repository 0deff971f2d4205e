"""A DataLoader with `utils.data.default_convert`, whose items are whole batches."""

import numpy as np
import torch
from shared import loader_loop, net
from tests.parity.records import for_two_workers, make_data
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_convert

GROUP = "Input"

loss = nn.MSELoss()


class Numbers(Dataset):
    """Whole batches as NumPy arrays, as files of such arrays hold them."""

    def __init__(self, records, size):
        self.batches = [records[i : i + size] for i in range(0, len(records), size)]

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        batch = self.batches[index]
        return np.stack([r["x"] for r in batch]), np.stack([r["y"] for r in batch])


def train_dataloader(data):
    records, size = make_data().train, 8
    if "by_halves" in data:
        records, size = for_two_workers(records), 4
    return DataLoader(Numbers(records, size), batch_size=None, collate_fn=default_convert)


def val_dataloader(data):
    return DataLoader(Numbers(make_data().validation, 8), batch_size=None)


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loader_loop(
        model, stepping, loss, data.epochs, train_dataloader("train"), val_dataloader(None)
    )
