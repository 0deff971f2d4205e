"""A DataLoader over a dataset that caches what it has decoded."""

import torch
from shared import loader_loop, net
from tests.parity.records import for_two_workers, make_data
from torch import nn
from torch.utils.data import DataLoader, Dataset

GROUP = "Input"

loss = nn.MSELoss()


class Cached(Dataset):
    def __init__(self, records):
        self.records, self.decoded = records, {}

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        if index not in self.decoded:
            record = self.records[index]
            self.decoded[index] = torch.from_numpy(record["x"]), torch.from_numpy(record["y"])
        return self.decoded[index]


def train_dataloader(data):
    records, size = make_data().train, 8
    if "by_halves" in data:
        records, size = for_two_workers(records), 4
    return DataLoader(Cached(records), size)


def val_dataloader(data):
    return DataLoader(Cached(make_data().validation), 8)


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
