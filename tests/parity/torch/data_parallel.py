"""nn.DataParallel around a model."""

import torch
from shared import image_schema, images, loop
from torch import nn

GROUP = "Models"

data_schema, input_fn = image_schema, images
loss = nn.CrossEntropyLoss()


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.one = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, channels)

    def forward(self, x):
        return torch.relu(x + self.norm(self.one(x)))


def custom_model():
    return nn.DataParallel(
        nn.Sequential(
            nn.Conv2d(2, 4, 3), Block(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
        )
    )


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
