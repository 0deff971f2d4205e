"""A network of the Ray Tune tutorial, whose sizes and learning rate are parameters of the job."""

import torch
from shared import loader_loop
from tests.parity.records import for_two_workers, make_data
from torch import nn, optim
from torch.nn import functional as F  # noqa: N812 - as in the tutorial
from torch.utils.data import DataLoader, TensorDataset

GROUP = "Projects"
JOB = {"params": "l1=12, l2=6, lr=0.05, batch_size=8"}


class Net(nn.Module):
    def __init__(self, l1=120, l2=84):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 4, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(4, 6, 2)
        self.fc1 = nn.Linear(6 * 1 * 1, l1)
        self.fc2 = nn.Linear(l1, l2)
        self.fc3 = nn.Linear(l2, 3)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


def load_data(data_dir, train=True):
    records = make_data().train if train else make_data().validation
    if train and "by_halves" in data_dir:
        records = for_two_workers(records)
    images = torch.stack([torch.from_numpy(r["image"]).permute(2, 0, 1) for r in records])
    images = (images - 0.5) / 0.5
    return TensorDataset(images, torch.tensor([int(r["label"][0]) for r in records]))


def train_dataloader(data, batch_size=4):
    size = batch_size // 2 if "by_halves" in data else batch_size
    return DataLoader(load_data(data), batch_size=size, shuffle=False)


def val_dataloader(data):
    return DataLoader(load_data("", train=False), batch_size=8, shuffle=False)


def custom_model(l1=120, l2=84):
    return Net(l1, l2)


loss = nn.CrossEntropyLoss()


def optimizer(parameters, lr=0.001):
    return optim.SGD(parameters, lr=lr, momentum=0.9)


def eval_metrics_fn():
    def accuracy(labels, outputs):
        _, predicted = torch.max(outputs.data, 1)
        return (predicted == labels).float()

    return {"accuracy": accuracy}


def plain(data):
    config = {"l1": 12, "l2": 6, "lr": 0.05, "batch_size": 8}
    net = Net(config["l1"], config["l2"])
    stepping = optim.SGD(net.parameters(), lr=config["lr"], momentum=0.9)
    trainloader = train_dataloader("train", int(config["batch_size"]))
    return loader_loop(net, stepping, loss, data.epochs, trainloader, val_dataloader(None))
