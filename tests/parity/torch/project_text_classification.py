"""Text classification: batches padded to their longest text, an LSTM, a mean of words, clipping."""

import numpy as np
import torch
from shared import loop
from torch import nn
from torch.nn.utils import clip_grad_norm_

GROUP = "Projects"
KILLED = True

loss = nn.CrossEntropyLoss()
gradient_clipping = 0.5


def data_schema():
    return [
        {"name": "tokens", "shape": [10], "dtype": "int64"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    texts = [record["tokens"][record["tokens"] > 0] for record in records]
    tokens = np.zeros((len(texts), max(map(len, texts))), np.int64)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    return tokens, np.int64([record["label"][0] for record in records])


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 6, padding_idx=0)
        self.lstm = nn.LSTM(6, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, tokens):
        there = (tokens > 0).unsqueeze(-1).float()
        states, _ = self.lstm(self.embedding(tokens))
        return self.head((states * there).sum(1) / there.sum(1))


def custom_model():
    return Reader()


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.02)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(
        data,
        model,
        stepping,
        loss,
        input_fn,
        clip=lambda parameters: clip_grad_norm_(parameters, gradient_clipping),
    )
