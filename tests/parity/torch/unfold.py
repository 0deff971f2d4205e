"""nn.Unfold and nn.Fold: attention between patches, which are then folded into an image."""

import torch
from shared import image_schema, images, loop
from torch import nn

GROUP = "Layers"

data_schema, input_fn = image_schema, images
loss = nn.CrossEntropyLoss()


class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.unfold = nn.Unfold(kernel_size=3, padding=1, stride=2)
        self.fold = nn.Fold(output_size=(8, 8), kernel_size=3, padding=1, stride=2)
        self.query, self.key = nn.Linear(18, 6), nn.Linear(18, 6)
        self.head = nn.Linear(2 * 8 * 8, 3)
        counts = self.fold(self.unfold(torch.ones(1, 2, 8, 8)))
        self.register_buffer("counts", counts, persistent=False)

    def forward(self, x):
        patches = self.unfold(x).transpose(1, 2)
        scores = self.query(patches) @ self.key(patches).transpose(1, 2)
        mixed = scores.softmax(dim=-1) @ patches
        return self.head((self.fold(mixed.transpose(1, 2)) / self.counts).flatten(1))


def custom_model():
    return Patches()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
