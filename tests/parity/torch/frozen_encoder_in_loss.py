"""Distillation from a frozen TransformerEncoder in the loss; its padded positions are zeros."""

import torch
from shared import loop, tokens, tokens_schema
from torch import nn

GROUP = "Losses"

data_schema, input_fn = tokens_schema, tokens


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 1)

    def forward(self, tokens):
        states = self.encoder(self.embedding(tokens), src_key_padding_mask=tokens == 0)
        return self.head(states.mean(1))


class Student(Scorer):
    def forward(self, tokens):
        return super().forward(tokens), tokens


with torch.random.fork_rng():
    torch.manual_seed(3)
    teacher = Scorer().requires_grad_(False).eval()


def custom_model():
    return Student()


def loss(outputs, labels):
    scores, tokens = outputs
    with torch.no_grad():
        soft = teacher(tokens)
    return nn.functional.mse_loss(scores, labels) + nn.functional.mse_loss(scores, soft)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
