"""The tutorial of `memory_format=torch.channels_last`: for the model and its images."""

import torch
from shared import image_schema, images, loop
from torch import nn

GROUP = "Number formats"
KILLED = True

data_schema, input_fn = image_schema, images
loss = nn.CrossEntropyLoss()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(),
            nn.Conv2d(4, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(16, 3)

    def forward(self, image):
        return self.head(self.body(image.to(memory_format=torch.channels_last)))


def custom_model():
    return Net().to(memory_format=torch.channels_last)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
