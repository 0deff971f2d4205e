"""The tutorial of language modelling as it is: the first axis is time, and targets are flat."""

import torch
from tests.parity.records import make_data
from torch import nn
from torch.utils.data import DataLoader, Dataset

GROUP = "Sequences"
EXPECT = (
    "refused: the first axis has the examples of a batch; return texts first, and transpose them"
)
REFUSAL = "one entry per example along its first axis"

bptt = 9


def loss(output, targets):
    return nn.functional.cross_entropy(output.view(-1, 20), targets)


class Sequences(Dataset):
    def __init__(self, records):
        words = torch.cat([torch.from_numpy(record["tokens"]) for record in records])
        self.source = words[: len(words) // 8 * 8].view(8, -1).t().contiguous()

    def __len__(self):
        return (len(self.source) - 1) // bptt

    def __getitem__(self, index):
        first = index * bptt
        target = self.source[first + 1 : first + 1 + bptt]
        return self.source[first : first + bptt], target.reshape(-1)


def train_dataloader(data):
    return DataLoader(Sequences(make_data().train), batch_size=None)


def val_dataloader(data):
    return DataLoader(Sequences(make_data().validation), batch_size=None)


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.rnn = nn.Embedding(20, 8), nn.GRU(8, 8)
        self.decoder = nn.Linear(8, 20)

    def forward(self, words):
        return self.decoder(self.rnn(self.encoder(words))[0])


def custom_model():
    return RNNModel()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.5)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    history = {"loss": []}
    for _ in range(data.epochs):
        losses = []
        for words, targets in train_dataloader(None):
            stepping.zero_grad()
            value = loss(model(words), targets)
            value.backward()
            stepping.step()
            losses.append(value.item())
        history["loss"].append(sum(losses) / len(losses))
    return history, model
