"""A small transformer that classifies texts: two layers, four heads, 64 tokens."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

CLASSES = 4
NUM_TOKENS, LENGTH = 8192, 64
WIDTH, HEADS, LAYERS = 128, 4, 2


class Texts(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(NUM_TOKENS, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.1, activation="gelu", batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.scores = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens):
        return self.scores(self.layers(self.tokens(tokens) + self.places).mean(1))


def custom_model():
    return Texts()


def data_schema():
    return [
        {"name": "tokens", "shape": [LENGTH], "dtype": "int64"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    tokens = np.stack([record["tokens"] for record in records])
    return {"tokens": tokens}, np.stack([record["label"] for record in records])


def loss(output, labels):
    return functional.cross_entropy(output, labels.flatten())


def optimizer(parameters, learning_rate=0.001):
    return torch.optim.AdamW(parameters, lr=learning_rate, fused=True)
