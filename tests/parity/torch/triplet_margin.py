"""TripletMarginLoss of three outputs of one network; the labels are not used."""

import numpy as np
import torch
from shared import loop, series_schema
from torch import nn

GROUP = "Losses"

data_schema = series_schema


def input_fn(records):
    """Return (anchors, positives and negatives, nothing to predict)."""
    series = np.stack([record["series"] for record in records])
    return series, np.zeros((len(records), 1), np.float32)


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, series):
        three = series.transpose(1, 2)
        return tuple(nn.functional.normalize(self.embed(three[:, i]), dim=-1) for i in range(3))


triplet = nn.TripletMarginLoss(margin=0.5, swap=True)


def loss(labels, predictions):
    return triplet(*predictions)


def custom_model():
    return Embedder()


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.02)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, lambda outputs, y: loss(y, outputs), input_fn)
