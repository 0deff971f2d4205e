"""Layer-wise decay of rates in groups (`lr_scale`), and a warmed-up cosine by LambdaLR."""

import math

import torch
from shared import classes, loop, table_schema
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

GROUP = "Learning rate schedules"

data_schema, input_fn = table_schema, classes
loss = nn.CrossEntropyLoss()
BASE_LR, MIN_LR, WARMUP_LR, WARMUP_T, T_INITIAL = 0.01, 1e-4, 1e-5, 4, 18


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Net(nn.Module):
    def __init__(self, depth=3, dim=8):
        super().__init__()
        self.patch_embed = nn.Linear(8, dim)
        self.pos_embed = nn.Parameter(torch.randn(dim) * 0.02)
        self.blocks = nn.Sequential(*[Block(dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 3)

    def no_weight_decay(self):
        return {"pos_embed"}

    def forward(self, x):
        x = self.patch_embed(x) + self.pos_embed
        return self.head(self.norm(self.blocks(x)))


def get_layer_id(name, num_layers):
    if name.startswith(("patch_embed", "pos_embed")):
        return 0
    if name.startswith("blocks."):
        return int(name.split(".")[1]) + 1
    return num_layers


def param_groups_layer_decay(model, weight_decay=0.05, layer_decay=0.75):
    no_weight_decay = model.no_weight_decay()
    param_groups = {}
    num_layers = len(model.blocks) + 1
    layer_scales = [layer_decay ** (num_layers - i) for i in range(num_layers + 1)]
    for name, param in model.named_parameters():
        if not param.requires_grad:
            continue
        if param.ndim == 1 or name in no_weight_decay:
            g_decay, this_decay = "no_decay", 0.0
        else:
            g_decay, this_decay = "decay", weight_decay
        layer_id = get_layer_id(name, num_layers)
        group_name = f"layer_{layer_id}_{g_decay}"
        if group_name not in param_groups:
            scale = layer_scales[layer_id]
            param_groups[group_name] = {
                "lr": BASE_LR * scale,
                "lr_scale": scale,
                "weight_decay": this_decay,
                "param_names": [],
                "params": [],
            }
        param_groups[group_name]["param_names"].append(name)
        param_groups[group_name]["params"].append(param)
    return list(param_groups.values())


def custom_model():
    return Net()


def optimizer(model):
    return torch.optim.AdamW(param_groups_layer_decay(model), lr=BASE_LR, betas=(0.9, 0.999))


def cosine_with_warmup(t):
    if t < WARMUP_T:
        return (WARMUP_LR + t * (BASE_LR - WARMUP_LR) / WARMUP_T) / BASE_LR
    cosine = 0.5 * (1 + math.cos(math.pi * t / T_INITIAL))
    return (MIN_LR + (BASE_LR - MIN_LR) * cosine) / BASE_LR


def lr_scheduler(optimizer):
    return {"scheduler": LambdaLR(optimizer, cosine_with_warmup), "interval": "step"}


def plain(data):
    model = custom_model()
    stepping = optimizer(model)
    scheduler = lr_scheduler(stepping)["scheduler"]
    return loop(data, model, stepping, loss, input_fn, after_update=scheduler.step)
