"""A small Llama: rotary embeddings in non-persistent buffers, RMSNorm, SwiGLU, fused AdamW."""

import numpy as np
import torch
from shared import loop, tokens_schema
from torch import nn
from torch.nn import functional

GROUP = "Models"

data_schema = tokens_schema


def input_fn(records):
    """Return (tokens, the next ones)."""
    tokens = np.stack([record["tokens"] for record in records])
    return tokens[:, :-1].copy(), tokens[:, 1:].copy()


class Rotary(nn.Module):
    def __init__(self, width, length):
        super().__init__()
        angles = torch.outer(torch.arange(length), 100 ** -(torch.arange(0, width, 2) / width))
        self.register_buffer(
            "turns", torch.polar(torch.ones_like(angles), angles), persistent=False
        )

    def forward(self, x):
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self.turns[: x.shape[-2]]).flatten(-2).type_as(x)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.queries = nn.Linear(width, width, bias=False)
        self.keys_values = nn.Linear(width, 2 * (width // heads), bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.rotary = Rotary(width // heads, 10)
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.gate, self.up = nn.Linear(width, 12, bias=False), nn.Linear(width, 12, bias=False)
        self.down = nn.Linear(12, width, bias=False)

    def forward(self, x):
        y = self.norms[0](x)
        q = self.rotary(self.queries(y).unflatten(-1, (self.heads, -1)).transpose(1, 2))
        k, v = self.keys_values(y).unsqueeze(1).chunk(2, -1)
        attended = functional.scaled_dot_product_attention(
            q, self.rotary(k), v, is_causal=True, enable_gqa=True
        )
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList([Block(8, 2) for _ in range(2)])
        self.norm, self.head = nn.RMSNorm(8), nn.Linear(8, 20, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss(labels, predictions):
    return functional.cross_entropy(predictions.flatten(0, 1), labels.flatten())


def custom_model():
    return Llama()


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, betas=(0.9, 0.95), fused=True)


def plain(data):
    model = custom_model()
    return loop(
        data,
        model,
        optimizer(model.parameters()),
        lambda outputs, labels: loss(labels, outputs),
        input_fn,
    )
