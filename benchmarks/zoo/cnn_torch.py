"""The network of `cnn.py` in PyTorch, for comparisons with what trains PyTorch models only."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

CLASSES = 10
SHAPE = (28, 28)


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            # As Keras has them: PyTorch's own are 1e-5 and 0.1.
            nn.BatchNorm2d(64, eps=1e-3, momentum=0.01),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * 12 * 12, CLASSES),
        )

    def forward(self, image):
        return self.stages(image.unsqueeze(1))


def custom_model() -> nn.Module:
    return Pictures()


def data_schema():
    return [
        {"name": "image", "shape": list(SHAPE), "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    images = np.stack([record["image"] for record in records])
    return {"image": images}, np.stack([record["label"] for record in records])


def loss(output, labels):
    return functional.cross_entropy(output, labels.flatten())


def optimizer(parameters, learning_rate=0.001):
    return torch.optim.Adam(parameters, lr=learning_rate)
