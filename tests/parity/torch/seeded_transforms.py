"""A dataset that seeds the generators twice, to turn a picture and its mask by the same chance."""

import random

import numpy as np
import torch
from shared import loader_loop
from tests.parity.records import for_two_workers, make_data
from torch import nn
from torch.utils.data import DataLoader, Dataset

GROUP = "Input"
KILLED = True

loss = nn.BCEWithLogitsLoss()


def transform(picture):
    if random.random() < 0.5:
        picture = picture.flip(-1)
    picture = torch.rot90(picture, int(torch.randint(4, ())), (-2, -1))
    return picture.roll(int(np.random.randint(3)), -1)  # noqa: NPY002 - as scripts do


class Pictures(Dataset):
    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        picture = torch.from_numpy(self.records[index]["image"]).permute(2, 0, 1)
        mask = (picture.sum(0, keepdim=True) > 1.2).float()
        seed = int(1000 * picture.sum())
        self.seed(seed)
        picture = transform(picture)
        self.seed(seed)
        return picture, transform(mask)

    def seed(self, seed):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - as scripts do
        torch.manual_seed(seed)


def train_dataloader(data):
    records, size = make_data().train, 8
    if "by_halves" in data:
        records, size = for_two_workers(records), 4
    return DataLoader(Pictures(records), size)


def val_dataloader(data):
    return DataLoader(Pictures(make_data().validation), 8)


def custom_model():
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loader_loop(
        model, stepping, loss, data.epochs, train_dataloader("train"), val_dataloader(None)
    )
