"""BYOL: a target network that follows by a callback, with a momentum that rises to one."""

import copy
import math

import numpy as np
import torch
from shared import loop, net, table_schema
from torch import nn
from torch.nn import functional

GROUP = "Callbacks"

data_schema = table_schema


def input_fn(records):
    x = np.stack([record["x"] for record in records])
    return {"one": x + 0.1, "two": x * 0.9}, np.zeros(len(x), np.int64)


class BYOL(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = net(4)
        self.predictor = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, views):
        one, two = self.online(views["one"]), self.online(views["two"])
        with torch.no_grad():
            first, second = self.target(views["one"]), self.target(views["two"])
        likeness = functional.cosine_similarity
        return 4 - 2 * (
            likeness(self.predictor(one), second) + likeness(self.predictor(two), first)
        )


def loss(outputs, labels):
    return outputs.mean()


class Follow:
    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        momentum = 1 - 0.1 * (math.cos(math.pi * self.steps / 18) + 1) / 2
        self.steps += 1
        online, target = self.model.online.parameters(), self.model.target.parameters()
        with torch.no_grad():
            for one, other in zip(online, target, strict=True):
                other.mul_(momentum).add_(one, alpha=1 - momentum)


def custom_model():
    return BYOL()


def optimizer(parameters):
    return torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.05, momentum=0.9)


def callbacks():
    return [Follow()]


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn, callbacks=callbacks())
