"""Stochastic depth as in timm: DropPath, with rates of `torch.linspace` that grow with depth."""

import torch
from shared import classes, loop, table_schema
from torch import nn

GROUP = "Layers"
EXPECT = "differs: random draws are a function of (seed, step, worker), not of a generator's state"

data_schema, input_fn = table_schema, classes
loss = nn.CrossEntropyLoss()


def drop_path(x, drop_prob=0.0, training=False, scale_by_keep=True):
    """Drop paths (stochastic depth) per sample."""
    if drop_prob == 0.0 or not training:
        return x
    keep_prob = 1 - drop_prob
    shape = (x.shape[0],) + (1,) * (x.ndim - 1)
    random_tensor = x.new_empty(shape).bernoulli_(keep_prob)
    if keep_prob > 0.0 and scale_by_keep:
        random_tensor.div_(keep_prob)
    return x * random_tensor


class DropPath(nn.Module):
    def __init__(self, drop_prob=0.0, scale_by_keep=True):
        super().__init__()
        self.drop_prob = drop_prob
        self.scale_by_keep = scale_by_keep

    def forward(self, x):
        return drop_path(x, self.drop_prob, self.training, self.scale_by_keep)


class Block(nn.Module):
    def __init__(self, dim, drop_path):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.drop_path = DropPath(drop_path) if drop_path > 0.0 else nn.Identity()

    def forward(self, x):
        return x + self.drop_path(self.mlp(self.norm(x)))


class Net(nn.Module):
    def __init__(self, depth=4, dim=8, drop_path_rate=0.5):
        super().__init__()
        dpr = [x.item() for x in torch.linspace(0, drop_path_rate, depth)]
        self.patch_embed = nn.Linear(8, dim)
        self.blocks = nn.Sequential(*[Block(dim, dpr[i]) for i in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 3)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.patch_embed(x))))


def custom_model():
    return Net()


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.05)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
