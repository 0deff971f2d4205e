r"""Handwritten digits with PyTorch: the same functions, and a torch.nn.Module.

The file imports torch and not Keras, so the model is taken for PyTorch's. Where a file imports
both, the annotation decides: `-> torch.nn.Module`.

    elasticdl train --model_zoo=examples --model_def=mnist_torch --params="channels=[16, 32]" \
        --data=demo/data/train --output=demo/mnist_torch --num_epochs=8
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class Digits(nn.Module):
    """Stages of convolution and pooling, then a dense layer."""

    def __init__(self, channels):
        super().__init__()
        stages, width = [], 1
        for count in channels:
            stages += [nn.Conv2d(width, count, 3), nn.BatchNorm2d(count), nn.ReLU()]
            stages += [nn.MaxPool2d(2)]
            width = count
        self.stages = nn.Sequential(*stages)
        self.dropout = nn.Dropout(0.25)
        self.scores = nn.LazyLinear(10)

    def forward(self, image):
        """Return one score for each digit, [batch, 10].

        Args:
            image: [batch, 28, 28]; named like the entry of the features it is given.
        """
        x = self.stages(image.unsqueeze(1))
        return self.scores(self.dropout(x.flatten(1)))


def custom_model(channels=(16, 32)):
    """Return a new model."""
    return Digits(channels)


def data_schema():
    """Say what a record holds."""
    return [
        {"name": "image", "shape": [28, 28], "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    """Make one batch, as numpy arrays; model and loss get them as tensors."""
    images = np.stack([record["image"] for record in records]) / np.float32(255)
    labels = np.array([record["label"] for record in records if "label" in record])
    return {"image": images}, labels


def loss(labels, predictions):
    """Return the cross-entropy of the true digits; labels are [batch, 1]."""
    return functional.cross_entropy(predictions, labels.flatten())


def optimizer(parameters, learning_rate=0.003):
    """Return Adam for the model's parameters."""
    return torch.optim.Adam(parameters, lr=learning_rate)


def eval_metrics_fn(labels, predictions):
    """Return the share of digits that are right, for one batch."""
    right = predictions.argmax(dim=1) == labels.flatten()
    return {"accuracy": right.float().mean()}
