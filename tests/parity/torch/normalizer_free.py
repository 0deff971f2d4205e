"""Standardized kernels (`F.batch_norm`), GroupNorm, adaptive gradient clipping, warmed-up EMA."""

import torch
from shared import image_schema, images, loop
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel

GROUP = "Layers"

data_schema, input_fn = image_schema, images
loss = nn.CrossEntropyLoss(label_smoothing=0.1)


class StdConv2d(nn.Conv2d):
    """A convolution whose kernels have a mean of 0 and a variance of 1, as those of BiT have."""

    def forward(self, x):
        kernel = functional.batch_norm(
            self.weight.reshape(1, self.out_channels, -1),
            None, None, training=True, momentum=0.0, eps=1e-5,
        ).reshape_as(self.weight)  # fmt: skip
        return functional.conv2d(x, kernel, self.bias, self.stride, self.padding)


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(2, channels)
        self.conv = StdConv2d(channels, channels, 3, padding=1)
        self.scale = nn.Parameter(torch.full((channels, 1, 1), 0.1))

    def forward(self, x):
        return x + self.scale * self.conv(functional.gelu(self.norm(x)))


def custom_model():
    return nn.Sequential(
        StdConv2d(2, 4, 3, stride=2, padding=1), Block(4), Block(4),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip


def averaged_model(model, decay=0.95):
    def warmed_up(average, current, num_averaged):
        rate = min(decay, (1 + int(num_averaged)) / (10 + int(num_averaged)))
        return average + (1 - rate) * (current - average)

    return AveragedModel(model, avg_fn=warmed_up)


def _norm(tensor):
    """Return the norm of each output unit."""
    dims = tuple(range(1 if tensor.ndim > 1 else 0, tensor.ndim))
    return tensor.square().sum(dims, keepdim=True).sqrt()


@torch.no_grad()
def gradient_clipping(parameters, limit=0.02):
    for parameter in parameters:
        if parameter.grad is not None:
            largest = _norm(parameter).clamp(min=1e-3) * limit
            norm = _norm(parameter.grad).clamp(min=1e-6)
            parameter.grad.mul_((largest / norm).clamp(max=1.0))


def optimizer(parameters):
    parameters = list(parameters)
    groups = [
        {"params": [p for p in parameters if p.ndim in (2, 4)], "weight_decay": 0.01},
        {"params": [p for p in parameters if p.ndim not in (2, 4)], "weight_decay": 0.0},
    ]
    return torch.optim.SGD(groups, lr=0.2, momentum=0.9, nesterov=True)


def plain(data):
    model = custom_model()
    return loop(
        data, model, optimizer(model.parameters()), loss, input_fn,
        clip=gradient_clipping, average=averaged_model(model),
    )  # fmt: skip
