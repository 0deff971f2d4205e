"""ListNet: the scores of the documents of each query are compared as two distributions."""

import numpy as np
import torch
from shared import loop, series_schema
from torch import nn
from torch.nn import functional

GROUP = "Losses"

data_schema = series_schema


def input_fn(records):
    documents = np.stack([record["series"] for record in records])
    return documents, np.float32(documents.sum(2) > 0) + np.float32(documents[:, :, 0] > 1)


def loss(outputs, labels):
    return -(functional.softmax(labels, 1) * functional.log_softmax(outputs, 1)).sum(1).mean()


def gain(outputs, labels):
    """Return NDCG@3 of each query."""
    discounts = 1 / torch.log2(torch.arange(2.0, 5.0))
    found = labels.gather(1, outputs.argsort(1, descending=True))[:, :3]
    best = labels.sort(1, descending=True).values[:, :3]
    return ((2**found - 1) * discounts).sum(1) / ((2**best - 1) * discounts).sum(1).clamp(min=1e-9)


def eval_metrics_fn(predictions, labels):
    return {"metric": gain(predictions, labels)}


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1, bias=False))

    def forward(self, documents):
        return self.net(documents).squeeze(-1)


def custom_model():
    return Scorer()


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.02, weight_decay=1e-4)


def plain(data):
    model = custom_model()
    return loop(
        data,
        model,
        optimizer(model.parameters()),
        loss,
        input_fn,
        metric=lambda outputs, labels: gain(outputs, labels).mean(),
    )
