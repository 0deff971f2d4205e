"""Tabular data: embeddings of categories beside numbers, pos_weight, plateau, early stopping."""

import numpy as np
import torch
from shared import loop
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

GROUP = "Projects"
KILLED = True
JOB = {"num_epochs": 5}

loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.5]))


def data_schema():
    return [
        {"name": "x", "shape": [8], "dtype": "float32"},
        {"name": "tokens", "shape": [10], "dtype": "int64"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    features = {
        "numbers": np.stack([record["x"] for record in records]),
        "kinds": np.stack([record["tokens"][:2] % 5 for record in records]),
    }
    return features, np.float32([record["label"] > 0 for record in records])


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(5, 3) for _ in range(2))
        self.body = nn.Sequential(nn.Linear(14, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1))

    def forward(self, inputs):
        embedded = [each(inputs["kinds"][:, i]) for i, each in enumerate(self.embeddings)]
        return self.body(torch.cat([inputs["numbers"], *embedded], 1))


class EarlyStopping:
    """Stops after two epochs without a lower loss of the validation."""

    def __init__(self, patience=2):
        self.patience, self.best, self.waited = patience, float("inf"), 0

    def on_epoch_end(self, epoch, logs):
        if logs["val_loss"] < self.best - 0.2:
            self.best, self.waited = logs["val_loss"], 0
        else:
            self.waited += 1
            self.model.stop_training = self.waited >= self.patience


def custom_model():
    return Table()


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.02)


def lr_scheduler(optimizer):
    return ReduceLROnPlateau(optimizer, factor=0.3, patience=0, threshold=0.1)


def callbacks():
    return [EarlyStopping()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    schedule = lr_scheduler(stepping)
    history, model = loop(
        data, model, stepping, loss, input_fn, callbacks=callbacks(), after_epoch=schedule.step
    )
    assert len(history["loss"]) == 3, "It stops early, after the third epoch"
    return history, model
