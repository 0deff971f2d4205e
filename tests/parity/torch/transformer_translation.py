"""nn.Transformer with a decoder, and padding masks."""

import math
import warnings

import torch
from shared import loop, tokens, tokens_schema
from torch import nn

GROUP = "Sequences"

warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")
data_schema = tokens_schema
PAD = 0


def input_fn(records):
    source, _ = tokens(records)
    return source, source[:, 1:].copy()


class PositionalEncoding(nn.Module):
    def __init__(self, size, maxlen=16):
        super().__init__()
        den = torch.exp(-torch.arange(0, size, 2) * math.log(10000) / size)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        embedding = torch.zeros((maxlen, size))
        embedding[:, 0::2] = torch.sin(pos * den)
        embedding[:, 1::2] = torch.cos(pos * den)
        self.register_buffer("pos_embedding", embedding)

    def forward(self, embedded):
        return embedded + self.pos_embedding[: embedded.size(1)]


class Seq2SeqTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.Transformer(
            d_model=8,
            nhead=2,
            num_encoder_layers=1,
            num_decoder_layers=1,
            dim_feedforward=16,
            dropout=0.0,
            batch_first=True,
        )
        self.generator = nn.Linear(8, 20)
        self.source = nn.Embedding(20, 8)
        self.target = nn.Embedding(20, 8)
        self.positional_encoding = PositionalEncoding(8)

    def forward(self, tokens):
        given = tokens[:, :-1]
        outputs = self.transformer(
            self.positional_encoding(self.source(tokens) * math.sqrt(8)),
            self.positional_encoding(self.target(given) * math.sqrt(8)),
            tgt_mask=torch.triu(torch.ones(9, 9, dtype=torch.bool), diagonal=1),
            src_key_padding_mask=tokens == PAD,
            tgt_key_padding_mask=given == PAD,
            memory_key_padding_mask=tokens == PAD,
        )
        return self.generator(outputs)


def loss(labels, logits):
    return nn.functional.cross_entropy(logits.reshape(-1, 20), labels.reshape(-1), ignore_index=PAD)


def custom_model():
    model = Seq2SeqTransformer()
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)
    return model


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(
        data,
        model,
        optimizer(model.parameters()),
        lambda outputs, labels: loss(labels, outputs),
        input_fn,
        count=lambda labels: (labels != PAD).sum().item(),
    )
