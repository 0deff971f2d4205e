"""A categorical autoencoder whose temperature a callback lowers after each batch."""

import torch
from shared import loop, numbers, table_schema
from torch import nn

GROUP = "Callbacks"

data_schema = table_schema


def input_fn(records):
    x, _ = numbers(records)
    return x, x


class Autoencoder(nn.Module):
    temperature = 1.0

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 6)
        self.decoder = nn.Linear(6, 8)
        self.shares = None

    def forward(self, x):
        logits = self.encoder(x).view(-1, 2, 3)
        # Without noise, so that a plain loop has the same numbers.
        soft = (logits / self.temperature).softmax(-1)
        return self.decoder(soft.flatten(1)), logits.log_softmax(-1)


def loss(outputs, labels):
    rebuilt, log_shares = outputs
    divergence = (log_shares.exp() * (log_shares + torch.log(torch.tensor(3.0)))).sum((1, 2))
    return ((rebuilt - labels) ** 2).sum(1).mean() + divergence.mean()


class Anneal:
    def __init__(self, rate=0.05, least=0.3):
        self.rate, self.least, self.updates = rate, least, 0

    def on_train_batch_end(self, batch, logs=None):
        self.updates += 1
        if self.updates % 2 == 0:
            warmth = torch.exp(torch.tensor(-self.rate * self.updates)).item()
            self.model.temperature = max(self.least, warmth)


def custom_model():
    return Autoencoder()


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def callbacks():
    return [Anneal()]


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn, callbacks=callbacks())
