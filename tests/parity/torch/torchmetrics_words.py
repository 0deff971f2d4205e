"""TorchMetrics: WordInfoLost of sentences, which a derived class decodes from tokens."""

import numpy as np
import torch
from shared import loop, tokens_schema
from torch import nn
from torchmetrics.text import WordInfoLost

GROUP = "Metrics"

data_schema = tokens_schema
loss = nn.CrossEntropyLoss(ignore_index=0)

WORDS = ["", *(f"word{number % 6}" for number in range(1, 20))]


def input_fn(records):
    """Return (tokens, the next token at each place)."""
    tokens = np.stack([record["tokens"] for record in records])
    return tokens[:, :-1], tokens[:, 1:]


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=0)
        self.gru = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 20)

    def forward(self, tokens):
        return self.head(self.gru(self.embedding(tokens))[0]).transpose(1, 2)


def sentences(tokens, where):
    return [
        " ".join(WORDS[token] for token in row[mask].tolist())
        for row, mask in zip(tokens, where, strict=True)
    ]


class Lost(WordInfoLost):
    def update(self, preds, target):
        where = target != 0
        super().update(sentences(preds.argmax(1), where), sentences(target, where))


def custom_model():
    return Tagger()


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.02)


def eval_metrics_fn():
    return {"lost": Lost()}


def plain(data):
    model = custom_model()

    def count(labels):
        return (labels != 0).sum().item()

    return loop(
        data, model, optimizer(model.parameters()), loss, input_fn,
        count=count, metrics=eval_metrics_fn(),
    )  # fmt: skip
