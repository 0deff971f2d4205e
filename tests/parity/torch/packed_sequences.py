"""pack_padded_sequence."""

import torch
from shared import loop, tokens, tokens_schema
from torch import nn

GROUP = "Sequences"

data_schema, input_fn = tokens_schema, tokens
loss = nn.MSELoss()


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 4, padding_idx=0)
        self.gru = nn.GRU(4, 4, batch_first=True)
        self.head = nn.Linear(4, 1)

    def forward(self, tokens):
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(tokens), (tokens > 0).sum(1), batch_first=True, enforce_sorted=False
        )
        return self.head(self.gru(packed)[1][0])


def custom_model():
    return Packed()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
