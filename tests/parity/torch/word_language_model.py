"""The tutorial of language modelling, texts first: sequences of `bptt` words, clipping, StepLR."""

import math
import warnings

import numpy as np
import torch
from tests.parity.records import make_data
from torch import Tensor, nn
from torch.nn import TransformerEncoder, TransformerEncoderLayer
from torch.utils.data import DataLoader, Dataset

GROUP = "Sequences"
warnings.filterwarnings("ignore", "enable_nested_tensor is True")
EXPECT = {"workers": "equal within 0.001: a learning rate of 5 amplifies rounding errors"}

bptt = 10
ntokens = 20
criterion = nn.CrossEntropyLoss()
gradient_clipping = 0.5


def batchify(data: Tensor, bsz: int) -> Tensor:
    """Divide the data into `bsz` separate sequences: [seq_len, bsz]."""
    seq_len = data.size(0) // bsz
    data = data[: seq_len * bsz]
    return data.view(bsz, seq_len).t().contiguous()


class Sequences(Dataset):
    def __init__(self, records, bsz):
        words = np.concatenate([record["tokens"] for record in records])
        self.source = batchify(torch.from_numpy(words), bsz)

    def __len__(self):
        return math.ceil((len(self.source) - 1) / bptt)

    def __getitem__(self, index):
        i = index * bptt
        seq_len = min(bptt, len(self.source) - 1 - i)
        data = self.source[i : i + seq_len]
        target = self.source[i + 1 : i + 1 + seq_len]
        return data.t(), target.t()


class Halves:
    def __init__(self, sequences):
        self.sequences = sequences

    def __len__(self):
        return 2 * len(self.sequences)

    def __getitem__(self, index):
        half, index = divmod(index, len(self.sequences))
        data, target = self.sequences[index]
        return data[4 * half : 4 * half + 4], target[4 * half : 4 * half + 4]


def train_dataloader(data):
    sequences = Sequences(make_data().train, 8)
    return DataLoader(Halves(sequences) if "by_halves" in data else sequences, batch_size=None)


def val_dataloader(data):
    return DataLoader(Sequences(make_data().validation, 4), batch_size=None)


class PositionalEncoding(nn.Module):
    def __init__(self, d_model: int, dropout: float = 0.1, max_len: int = 50):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.pe[: x.size(0)]
        return self.dropout(x)


class TransformerModel(nn.Module):
    def __init__(self, ntoken, d_model, nhead, d_hid, nlayers, dropout=0.5):
        super().__init__()
        self.model_type = "Transformer"
        self.pos_encoder = PositionalEncoding(d_model, dropout)
        encoder_layers = TransformerEncoderLayer(d_model, nhead, d_hid, dropout)
        self.transformer_encoder = TransformerEncoder(encoder_layers, nlayers)
        self.embedding = nn.Embedding(ntoken, d_model)
        self.d_model = d_model
        self.linear = nn.Linear(d_model, ntoken)
        self.init_weights()

    def init_weights(self) -> None:
        initrange = 0.1
        self.embedding.weight.data.uniform_(-initrange, initrange)
        self.linear.bias.data.zero_()
        self.linear.weight.data.uniform_(-initrange, initrange)

    def forward(self, src: Tensor, src_mask: Tensor = None) -> Tensor:
        src = self.embedding(src.t()) * math.sqrt(self.d_model)
        src = self.pos_encoder(src)
        if src_mask is None:
            src_mask = nn.Transformer.generate_square_subsequent_mask(len(src)).to(src.device)
        output = self.transformer_encoder(src, src_mask)
        return self.linear(output).transpose(0, 1)


def custom_model():
    return TransformerModel(ntokens, d_model=8, nhead=2, d_hid=16, nlayers=2, dropout=0.0)


def loss(output, targets):
    return criterion(output.reshape(-1, ntokens), targets.reshape(-1))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=5.0)


def lr_scheduler(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.95)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    scheduler = lr_scheduler(stepping)
    history = {"loss": [], "val_loss": []}
    for _ in range(data.epochs):
        model.train()
        total, count = 0.0, 0
        for words, targets in train_dataloader("train"):
            value = loss(model(words), targets)
            stepping.zero_grad()
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            stepping.step()
            total, count = total + words.numel() * value.item(), count + words.numel()
        history["loss"].append(total / count)
        model.eval()
        total, count = 0.0, 0
        with torch.no_grad():
            for words, targets in val_dataloader(None):
                total += words.numel() * loss(model(words), targets).item()
                count += words.numel()
        history["val_loss"].append(total / count)
        scheduler.step()
    return history, model
