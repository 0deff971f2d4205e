"""Attention written with `einsum` and `masked_fill`, over padded tokens."""

import torch
from shared import loop, tokens, tokens_schema
from torch import nn

GROUP = "Sequences"

data_schema, input_fn = tokens_schema, tokens
loss = nn.MSELoss()


class SelfAttention(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size)
        self.register_buffer("scale", torch.tensor((size // heads) ** -0.5))

    def forward(self, x, mask):
        n, length, size = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, -1).unbind(2)
        scores = torch.einsum("nqhd,nkhd->nhqk", q, k) * self.scale
        scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
        attended = torch.einsum("nhqk,nkhd->nqhd", scores.softmax(dim=-1), v)
        return self.out(attended.reshape(n, length, size))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=0)
        self.position = nn.Parameter(torch.zeros(1, 10, 8))
        self.attention = SelfAttention(8, 2)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 1)

    def forward(self, tokens):
        mask = tokens > 0
        x = self.embedding(tokens) + self.position
        x = self.norm(x + self.attention(x, mask))
        return self.head((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def custom_model():
    return Encoder()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
