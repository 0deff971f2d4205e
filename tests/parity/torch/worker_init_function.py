"""`worker_init_fn` that configures the dataset, `persistent_workers`, `get_worker_info()`."""

import numpy as np
import torch
from shared import loader_loop, net
from tests.parity.records import for_two_workers, make_data
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

GROUP = "Input"

loss = nn.MSELoss()


class Opened(Dataset):
    """A dataset whose records are opened in a worker, as one does with HDF5 files."""

    def __init__(self, records):
        self.closed, self.records, self.mean = records, None, 0.0

    def __len__(self):
        return len(self.closed)

    def __getitem__(self, index):
        record = self.records[index]
        scale = 0.5 if get_worker_info() is None else 1.0
        return torch.from_numpy(record["x"] * scale - self.mean), torch.from_numpy(record["y"])


def opened(worker):
    torch.manual_seed(worker)
    dataset = get_worker_info().dataset
    dataset.records = dataset.closed
    dataset.mean = float(np.mean([record["x"] for record in dataset.closed]))


def loader(records, size):
    return DataLoader(
        Opened(records), size, num_workers=1, worker_init_fn=opened, persistent_workers=True
    )


def train_dataloader(data):
    records = make_data().train
    return loader(for_two_workers(records), 4) if "by_halves" in data else loader(records, 8)


def val_dataloader(data):
    return loader(make_data().validation, 8)


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
