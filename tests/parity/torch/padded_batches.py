"""A DataLoader with `pad_sequence` in its `collate_fn`, and a WeightedRandomSampler for classes."""

import torch
from shared import loader_loop
from tests.parity.records import make_data
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

GROUP = "Input"
EXPECT = (
    "differs: the sampler's random draws are a function of (seed, epoch), not of a generator's "
    "state"
)

loss = nn.CrossEntropyLoss()


class Sentences(Dataset):
    def __init__(self, records):
        self.texts = [torch.from_numpy(r["tokens"][r["tokens"] > 0]) for r in records]
        self.labels = [int(r["label"][0]) for r in records]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.texts[index], self.labels[index]


def collate(batch):
    texts, labels = zip(*batch, strict=True)
    return pad_sequence(texts, batch_first=True), torch.tensor(labels)


def train_dataloader(data, batch_size=8):
    dataset = Sentences(make_data().train)
    counts = torch.bincount(torch.tensor(dataset.labels))
    weights = (1.0 / counts)[dataset.labels]
    sampler = WeightedRandomSampler(weights, len(dataset))
    return DataLoader(dataset, batch_size, sampler=sampler, collate_fn=collate)


def val_dataloader(data):
    return DataLoader(Sentences(make_data().validation), 8, collate_fn=collate)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 6, padding_idx=0)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens):
        there = (tokens > 0).unsqueeze(-1)
        return self.head((self.embedding(tokens) * there).sum(1) / there.sum(1))


def custom_model():
    return Reader()


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.05)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loader_loop(
        model, stepping, loss, data.epochs, train_dataloader(None), val_dataloader(None)
    )
