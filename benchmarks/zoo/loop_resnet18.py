"""ResNet-18 (He et al., 2015, https://arxiv.org/abs/1512.03385, table 1) on pictures of 64x64."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

CLASSES = 10
SHAPE = (3, 64, 64)
WIDTHS = (64, 128, 256, 512)


class Block(nn.Module):
    """Two convolutions beside a shortcut, which is a projection where the shape changes."""

    def __init__(self, num_inputs, num_outputs, stride):
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(num_inputs, num_outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(num_outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(num_outputs, num_outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(num_outputs),
        )
        self.shortcut = nn.Identity()
        if stride != 1 or num_inputs != num_outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(num_inputs, num_outputs, 1, stride, bias=False),
                nn.BatchNorm2d(num_outputs),
            )

    def forward(self, x):
        return functional.relu(self.residual(x) + self.shortcut(x), inplace=True)


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [
            nn.Conv2d(SHAPE[0], WIDTHS[0], 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(WIDTHS[0]),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        ]
        num_inputs = WIDTHS[0]
        for i, width in enumerate(WIDTHS):
            layers += [Block(num_inputs, width, 1 if i == 0 else 2), Block(width, width, 1)]
            num_inputs = width
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.scores = nn.Linear(num_inputs, CLASSES)

    def forward(self, image):
        return self.scores(self.layers(image))


def custom_model():
    return ResNet18()


def data_schema():
    return [
        {"name": "image", "shape": list(SHAPE), "dtype": "uint8"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    images = np.stack([record["image"] for record in records]).astype(np.float32)
    # In place: these are the largest arrays that are made of a minibatch.
    images /= np.float32(127.5)
    images -= np.float32(1)
    return {"image": images}, np.stack([record["label"] for record in records])


def loss(output, labels):
    return functional.cross_entropy(output, labels.flatten())


def optimizer(parameters, learning_rate=0.01):
    return torch.optim.SGD(
        parameters, lr=learning_rate, momentum=0.9, weight_decay=1e-4, fused=True
    )
