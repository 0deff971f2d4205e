"""A DataLoader with a RandomSampler that draws with replacement from its own generator."""

import torch
from shared import loader_loop, net
from tests.parity.records import make_data
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

GROUP = "Input"
EXPECT = {"two workers": "differs: an update combines other batches of the loader"}
KILLED = True

loss = nn.MSELoss()


class Numbers(Dataset):
    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        record = self.records[index]
        return torch.from_numpy(record["x"]), torch.from_numpy(record["y"])


def train_dataloader(data, batch_size=8):
    dataset = Numbers(make_data().train)
    generator = torch.Generator().manual_seed(3)
    sampler = RandomSampler(dataset, replacement=True, num_samples=40, generator=generator)
    return DataLoader(dataset, batch_size, sampler=sampler)


def val_dataloader(data):
    return DataLoader(Numbers(make_data().validation), 8)


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loader_loop(
        model, stepping, loss, data.epochs, train_dataloader(None), val_dataloader(None)
    )
