"""An autoencoder of pictures, whose labels are its inputs."""

import torch
from shared import image_schema, images, loop
from torch import nn

GROUP = "Projects"
KILLED = True

data_schema = image_schema
loss = nn.MSELoss()


def input_fn(records):
    x, _ = images(records)
    return x, x


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(64, 6),
        )
        self.decoder = nn.Sequential(
            nn.Linear(6, 64),
            nn.Unflatten(1, (4, 4, 4)),
            nn.LeakyReLU(0.2),
            nn.ConvTranspose2d(4, 2, 4, stride=2, padding=1),
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))


def custom_model():
    return Autoencoder()


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def eval_metrics_fn(predictions, labels):
    return {"metric": (predictions - labels).abs().mean((1, 2, 3))}


def plain(data):
    model = custom_model()
    return loop(
        data,
        model,
        optimizer(model.parameters()),
        loss,
        input_fn,
        metric=lambda outputs, labels: (outputs - labels).abs().mean(),
    )
