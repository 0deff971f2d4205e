"""Image classification: ResNet, crops and flips, smoothed labels, warm-up, cosine, EMA."""

import math

import numpy as np
import torch
from shared import image_schema, images, loop
from torch import nn
from torch.optim import swa_utils
from torch.optim.lr_scheduler import LambdaLR

GROUP = "Projects"
KILLED = True
EXPECT = {"two workers": "differs: BatchNorm normalises with the examples of one worker"}

data_schema = image_schema
loss = nn.CrossEntropyLoss(label_smoothing=0.1)
UPDATES = 18


def input_fn(records):
    x, labels = images(records)
    augmented = [_augmented(image) for image in x]
    return (np.stack(augmented) - np.float32(0.6)) / np.float32(0.3), labels


def _augmented(image):
    # Each picture has its own augmentation, so that a plain loop makes the same.
    drawn = np.random.default_rng(int(image.sum() * 1e4))
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1)), mode="reflect")
    top, left = drawn.integers(0, 3, 2)
    cropped = padded[:, top : top + 8, left : left + 8]
    return cropped[:, :, ::-1].copy() if drawn.random() < 0.5 else cropped


class Block(nn.Module):
    def __init__(self, inside, outside, stride=1):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.shortcut = nn.Identity()
        if stride > 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def custom_model():
    model = nn.Sequential(
        Block(2, 4), Block(4, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if isinstance(module, Block):
            nn.init.zeros_(module.body[-1].weight)
    return model


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)


def lr_scheduler(optimizer):
    def rate(step):
        if step < 4:
            return (step + 1) / 4
        return 0.5 * (1 + math.cos(math.pi * (step - 4) / (UPDATES - 4)))

    return {"scheduler": LambdaLR(optimizer, rate), "interval": "step"}


def averaged_model(model):
    return swa_utils.AveragedModel(
        model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    )


def eval_metrics_fn(predictions, labels):
    return {"metric": (predictions.argmax(1) == labels).float()}


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(
        data,
        model,
        stepping,
        loss,
        input_fn,
        metric=lambda outputs, labels: (outputs.argmax(1) == labels).float().mean(),
        average=averaged_model(model),
        after_update=lr_scheduler(stepping)["scheduler"].step,
    )
