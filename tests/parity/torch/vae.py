"""A variational autoencoder with torch.distributions: `rsample` and `kl_divergence`."""

import numpy as np
import torch
from shared import loop, table_schema
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence

GROUP = "Models"
EXPECT = "differs: random draws are a function of (seed, step, worker), not of a generator's state"

data_schema = table_schema


def input_fn(records):
    x = np.stack([record["x"] for record in records])
    return x, x


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 6), nn.SiLU(), nn.Linear(6, 4))
        self.softplus = nn.Softplus()
        self.decoder = nn.Sequential(nn.Linear(2, 6), nn.SiLU(), nn.Linear(6, 8))

    def forward(self, x):
        mean, scale = self.encoder(x).chunk(2, dim=-1)
        posterior = Independent(Normal(mean, self.softplus(scale) + 1e-3), 1)
        # In evaluation too, as in most scripts.
        code = posterior.rsample()
        prior = Independent(Normal(torch.zeros_like(mean), torch.ones_like(mean)), 1)
        return {"x": self.decoder(code), "divergence": kl_divergence(posterior, prior)}


def loss(labels, predictions):
    error = (predictions["x"] - labels).square().sum(-1).mean()
    return error + predictions["divergence"].mean()


def custom_model():
    return Autoencoder()


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.01)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, lambda out, labels: loss(labels, out), input_fn)
