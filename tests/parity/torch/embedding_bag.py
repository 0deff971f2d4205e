"""nn.EmbeddingBag with padding_idx and per_sample_weights."""

import torch
from shared import loop, tokens, tokens_schema
from torch import nn

GROUP = "Layers"

data_schema, input_fn = tokens_schema, tokens
loss = nn.MSELoss()


class TextModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.linspace(0.5, 1.5, 20))
        self.embedding = nn.EmbeddingBag(20, 6, mode="sum", padding_idx=0)
        self.fc = nn.Linear(6, 1)
        self.init_weights()

    def init_weights(self):
        self.embedding.weight.data.uniform_(-0.5, 0.5)
        self.fc.weight.data.uniform_(-0.5, 0.5)
        self.fc.bias.data.zero_()

    def forward(self, text):
        return self.fc(self.embedding(text, per_sample_weights=self.weights[text]))


def custom_model():
    return TextModel()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
