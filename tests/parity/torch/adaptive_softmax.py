"""AdaptiveLogSoftmaxWithLoss: rare words in clusters; the model receives words and next words."""

import numpy as np
import torch
from shared import loop, tokens_schema
from torch import nn

GROUP = "Losses"

data_schema = tokens_schema


def input_fn(records):
    """Return (words, one label an example): the words to come are among the words."""
    tokens = np.stack([record["tokens"] for record in records])
    return tokens, tokens[:, -1]


class WordModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(20, 8), nn.LSTM(8, 8, batch_first=True)
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [6, 12], div_value=2.0)

    def forward(self, words):
        states, _ = self.lstm(self.embedding(words[:, :-1]))
        logged, _ = self.softmax(states.reshape(-1, 8), words[:, 1:].reshape(-1))
        return logged.view(len(words), -1)


def loss(labels, predictions):
    return -predictions.mean()


def custom_model():
    return WordModel()


def optimizer(parameters):
    return torch.optim.Adagrad(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(
        data,
        model,
        optimizer(model.parameters()),
        lambda outputs, labels: loss(labels, outputs),
        input_fn,
    )
