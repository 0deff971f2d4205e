"""GoogLeNet: auxiliary classifiers return outputs in training, one tensor in evaluation."""

from typing import NamedTuple

import torch
from shared import image_schema, images, loop
from torch import Tensor, nn
from torch.nn import functional

GROUP = "Models"

data_schema, input_fn = image_schema, images


class GoogLeNetOutputs(NamedTuple):
    logits: Tensor
    auxiliary: Tensor | None


class Inception(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.branches = nn.ModuleList(
            [
                nn.Conv2d(channels, 3, 1),
                nn.Sequential(nn.Conv2d(channels, 2, 1), nn.ReLU(), nn.Conv2d(2, 3, 3, padding=1)),
                nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), nn.Conv2d(channels, 3, 1)),
            ]
        )

    def forward(self, x):
        return functional.relu(torch.cat([branch(x) for branch in self.branches], 1))


class GoogLeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Inception(2), Inception(9)
        self.auxiliary, self.head = nn.Linear(9, 3), nn.Linear(9, 3)

    def forward(self, x):
        x = functional.max_pool2d(self.first(x), 2)
        auxiliary = self.auxiliary(x.mean((2, 3))) if self.training else None
        logits = self.head(functional.adaptive_avg_pool2d(self.second(x), 1).flatten(1))
        return GoogLeNetOutputs(logits, auxiliary) if self.training else logits


def loss(labels, predictions):
    if isinstance(predictions, tuple):
        logits, auxiliary = predictions
        rest = functional.cross_entropy(auxiliary, labels)
        return functional.cross_entropy(logits, labels) + 0.3 * rest
    return functional.cross_entropy(predictions, labels)


def custom_model():
    return GoogLeNet()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plain(data):
    model = custom_model()
    return loop(
        data,
        model,
        optimizer(model.parameters()),
        lambda outputs, labels: loss(labels, outputs),
        input_fn,
    )
