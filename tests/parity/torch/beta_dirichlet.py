"""Beta and Dirichlet distributions as likelihoods of a share and of a composition."""

import numpy as np
import torch
from shared import loop, table_schema
from torch import nn
from torch.distributions import Beta, Dirichlet

GROUP = "Losses"

data_schema = table_schema


def input_fn(records):
    x = np.stack([record["x"] for record in records])
    share = 1 / (1 + np.exp(-np.stack([record["y"] for record in records])))
    parts = np.exp(x[:, :3])
    parts /= parts.sum(1, keepdims=True)
    return x, np.concatenate([share, parts], 1).astype(np.float32)


class Shares(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 6), nn.Tanh())
        self.beta, self.dirichlet = nn.Linear(6, 2), nn.Linear(6, 3)

    def forward(self, x):
        hidden = self.body(x)
        concentrations = torch.cat([self.beta(hidden), self.dirichlet(hidden)], -1)
        return nn.functional.softplus(concentrations) + 1e-3


def loss(output, labels):
    alpha, beta, concentration = output.split([1, 1, 3], -1)
    share, parts = labels.split([1, 3], -1)
    likelihood = Beta(alpha, beta).log_prob(share).squeeze(-1)
    return -(likelihood + Dirichlet(concentration).log_prob(parts)).mean()


def custom_model():
    return Shares()


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.02)


def eval_metrics_fn():
    def metric(labels, output):
        return (Beta(output[:, 0], output[:, 1]).mean - labels[:, 0]).abs()

    return {"metric": metric}


def plain(data):
    model = custom_model()
    measured = eval_metrics_fn()["metric"]
    return loop(
        data, model, optimizer(model.parameters()), loss, input_fn,
        metric=lambda output, labels: measured(labels, output).mean(),
    )  # fmt: skip
