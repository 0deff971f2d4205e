"""nn.Conv2d, pooling."""

import torch
from shared import image_schema, images, loop
from torch import nn

GROUP = "Layers"

data_schema, input_fn = image_schema, images
loss = nn.CrossEntropyLoss()


def custom_model():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
