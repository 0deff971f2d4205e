"""Small PyTorch trainings, and what the tests of several files say of them."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from elasticdl.data.batch import Batch
from elasticdl.definition import ModelDefinition, Origin, RecordInput
from elasticdl.training.trainer import Contribution

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")


def small_model():
    return nn.Linear(4, 3)


def mean_loss(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels)


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.1)


def definition_of(create_model=small_model, loss=mean_loss, optimizer=sgd, **more):
    return ModelDefinition(
        origin=ORIGIN,
        framework="torch",
        create_model=create_model,
        input=RecordInput(lambda records: records),
        loss=loss,
        create_optimizer=lambda: (
            (lambda parameters, model: optimizer(parameters)) if callable(optimizer) else optimizer
        ),
        **more,
    )


def trainer_of(definition=None, batch=None, **more):
    from elasticdl.training.torch import TorchTrainer

    return TorchTrainer(
        definition or definition_of(), batch or batch_of(8), minibatch_size=8, **more
    )


def batch_of(size, seed=0, features=None):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 4)).astype("float32")
    return Batch(features(x) if features else x, rng.integers(0, 3, size), size)


def same_bits(one, other):
    return one.keys() == other.keys() and all(
        one[path].tobytes() == other[path].tobytes() and one[path].dtype == other[path].dtype
        for path in one
    )


def total_of(*contributions):
    return Contribution(
        sum(c.buffer for c in contributions), sum(c.num_examples for c in contributions)
    )


class Gated(nn.Module):
    """A layer that only batches with a positive first number go through."""

    def __init__(self):
        super().__init__()
        self.always = nn.Linear(4, 3)
        self.sometimes = nn.Linear(4, 3)
        self.never = nn.Linear(4, 3)

    def forward(self, x):
        out = self.always(x)
        return out + self.sometimes(x) if x[0, 0] > 0 else out


class ByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, left, right, scale=1.0):
        return self.out(torch.cat([left, right], 1)) * scale


class TakesDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, features):
        return self.out(features["x"])
