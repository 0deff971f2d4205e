"""Segmentation: a small U-Net, binary cross-entropy plus Dice of each picture, AdamW, poly rate."""

import numpy as np
import torch
from shared import image_schema, images, loop
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import PolynomialLR

GROUP = "Projects"
KILLED = True

data_schema = image_schema


def input_fn(records):
    x, _ = images(records)
    return x, np.float32(x[:, :1] + x[:, 1:] > 1.2)


def loss(outputs, masks):
    entropy = functional.binary_cross_entropy_with_logits(outputs, masks)
    shares = outputs.sigmoid().flatten(1)
    masks = masks.flatten(1)
    dice = 1 - (2 * (shares * masks).sum(1) + 1) / (shares.sum(1) + masks.sum(1) + 1)
    return entropy + dice.mean()


def double(inside, outside):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1),
        nn.GroupNorm(2, outside),
        nn.SiLU(),
        nn.Conv2d(outside, outside, 3, padding=1),
        nn.SiLU(),
    )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = double(2, 4)
        self.bottom = double(4, 8)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.out = nn.Sequential(double(8, 4), nn.Conv2d(4, 1, 1))

    def forward(self, x):
        skipped = self.down(x)
        deep = self.bottom(functional.max_pool2d(skipped, 2))
        return self.out(torch.cat([self.up(deep), skipped], 1))


def custom_model():
    return UNet()


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.05)


def lr_scheduler(optimizer):
    return {"scheduler": PolynomialLR(optimizer, 18, power=0.9), "interval": "step"}


def _overlap(outputs, masks):
    found, masks = outputs.flatten(1) > 0, masks.flatten(1) > 0
    return ((found & masks).sum(1) + 1) / ((found | masks).sum(1) + 1)


def eval_metrics_fn(predictions, labels):
    return {"metric": _overlap(predictions, labels)}


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(
        data,
        model,
        stepping,
        loss,
        input_fn,
        metric=lambda outputs, masks: _overlap(outputs, masks).mean(),
        after_update=lr_scheduler(stepping)["scheduler"].step,
    )
