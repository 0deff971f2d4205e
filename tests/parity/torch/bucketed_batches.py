"""Batches of texts of similar length, padded to their longest, and `src_key_padding_mask`."""

import random
import warnings

import torch
from shared import loader_loop
from tests.parity.records import make_data
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

GROUP = "Input"

warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")
loss = nn.CrossEntropyLoss()
PAD = 0


class Sentences(Dataset):
    def __init__(self, records):
        self.texts = [torch.from_numpy(r["tokens"][r["tokens"] > PAD]) for r in records]
        self.labels = [int(r["label"][0]) for r in records]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.texts[index], self.labels[index]


class BucketBatchSampler(Sampler):
    """Yields batches of texts of similar length, in another order in each epoch."""

    def __init__(self, lengths, batch_size, by_halves=False):
        self.batch_size, self.by_halves, self.epoch = batch_size, by_halves, 0
        self.sorted = sorted(range(len(lengths)), key=lambda i: lengths[i])

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        number = -(-len(self.sorted) // self.batch_size)
        return 2 * number if self.by_halves else number

    def __iter__(self):
        size = self.batch_size
        batches = [self.sorted[i : i + size] for i in range(0, len(self.sorted), size)]
        # The short one stays at the end.
        full, last = batches[:-1], batches[-1:]
        random.Random(self.epoch).shuffle(full)
        batches = full + last
        if self.by_halves:
            half = size // 2
            batches = [b[:half] for b in batches] + [b[half:] for b in batches]
        return iter(batches)


def collate(batch):
    texts, labels = zip(*batch, strict=True)
    return pad_sequence(texts, batch_first=True, padding_value=PAD), torch.tensor(labels)


def train_dataloader(data):
    dataset = Sentences(make_data().train)
    sampler = BucketBatchSampler([len(text) for text in dataset.texts], 8, "by_halves" in data)
    return DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)


def val_dataloader(data):
    return DataLoader(Sentences(make_data().validation), 8, collate_fn=collate)


class Classifier(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.embedding = nn.Embedding(20, size, padding_idx=PAD)
        self.positions = nn.Embedding(16, size)
        layer = nn.TransformerEncoderLayer(size, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(size, 3)

    def forward(self, tokens):
        padding = tokens == PAD
        places = torch.arange(tokens.size(1), device=tokens.device)
        x = self.embedding(tokens) + self.positions(places)
        x = self.encoder(x, src_key_padding_mask=padding)
        x = x.masked_fill(padding.unsqueeze(-1), 0.0)
        return self.head(x.sum(1) / (~padding).sum(1, keepdim=True))


def custom_model():
    return Classifier()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plain(data):
    model = custom_model()
    training = train_dataloader("train")

    class Epochs:
        epoch = 0

        def __iter__(self):
            training.batch_sampler.set_epoch(self.epoch)
            self.epoch += 1
            return iter(training)

    stepping = optimizer(model.parameters())
    return loader_loop(model, stepping, loss, data.epochs, Epochs(), val_dataloader(None))
