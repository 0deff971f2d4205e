"""Tasks weighted by learned uncertainties, which are two numbers among the outputs."""

import numpy as np
import torch
from shared import loop, table_schema
from torch import nn
from torch.nn import functional

GROUP = "Losses"

data_schema = table_schema


def input_fn(records):
    x = np.stack([record["x"] for record in records])
    y = np.stack([record["y"] for record in records])
    label = np.stack([record["label"] for record in records])
    return x, np.concatenate([y, label], axis=1).astype(np.float32)


class Tasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.GELU())
        self.number, self.scores = nn.Linear(6, 1), nn.Linear(6, 3)
        self.log_variances = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        x = self.body(x)
        return {
            "number": self.number(x),
            "scores": self.scores(x),
            "log_variances": self.log_variances,
        }


def loss(labels, predictions):
    error = functional.mse_loss(predictions["number"], labels[:, :1])
    entropy = functional.cross_entropy(predictions["scores"], labels[:, 1].long())
    log_variances = predictions["log_variances"]
    weights = torch.exp(-log_variances)
    return weights[0] * error + weights[1] * entropy + log_variances.sum() / 2


def custom_model():
    return Tasks()


def optimizer(parameters):
    parameters = list(parameters)
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.02)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, lambda out, labels: loss(labels, out), input_fn)
