"""A GAN: two optimizers that take turns."""

import numpy as np
import torch
from shared import table_schema
from torch import nn
from torch.nn import functional

GROUP = "Projects"
EXPECT = "refused: a model has one optimizer, and one update for a batch"
REFUSAL = "Several optimizers, as for a GAN, are not supported"

data_schema = table_schema


def input_fn(records):
    x = np.stack([record["x"] for record in records])
    return x, np.ones((len(x), 1), np.float32)


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Linear(4, 8)
        self.critic = nn.Linear(8, 1)

    def forward(self, x):
        noise = torch.randn(len(x), 4)
        return self.critic(x), self.critic(self.generator(noise))


def custom_model():
    return GAN()


def loss(outputs, labels):
    real, made = outputs
    ones = functional.binary_cross_entropy_with_logits(real, labels)
    return ones + functional.binary_cross_entropy_with_logits(made, torch.zeros_like(made))


def optimizer(model):
    return [torch.optim.Adam(part.parameters(), 0.01) for part in (model.generator, model.critic)]


def plain(data):
    raise NotImplementedError
