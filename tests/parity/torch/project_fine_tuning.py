"""Fine-tuning: a trained body whose BatchNorm stays as it is, unfrozen later with a lower rate."""

import torch
from shared import image_schema, images, loop
from torch import nn

GROUP = "Projects"
KILLED = True

data_schema, input_fn = image_schema, images
loss = nn.CrossEntropyLoss()


class Tuned(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.body(x))

    def train(self, mode=True):
        super().train(mode)
        # What it learned about its inputs stays.
        self.body[1].eval()
        return self


def trained_body():
    """Return the weights of a body that was trained before, as a downloaded file has them."""
    drawn = torch.Generator().manual_seed(5)
    weights = {"0.weight": 0.2 * torch.randn(6, 2, 3, 3, generator=drawn), "0.bias": torch.zeros(6)}
    weights |= {"1.weight": torch.ones(6), "1.bias": 0.1 * torch.randn(6, generator=drawn)}
    weights |= {"1.running_mean": 0.1 * torch.randn(6, generator=drawn)}
    weights |= {"1.running_var": torch.full((6,), 0.3)}
    return weights | {"1.num_batches_tracked": torch.tensor(400)}


class Unfreeze:
    def on_epoch_begin(self, epoch):
        if epoch == 1:
            self.model.body.requires_grad_(True)


def custom_model():
    model = Tuned()
    model.body.load_state_dict(trained_body())
    model.body.requires_grad_(False)
    return model


def optimizer(model):
    groups = [
        {"params": model.head.parameters(), "lr": 0.05},
        {"params": model.body.parameters(), "lr": 0.005},
    ]
    return torch.optim.Adam(groups)


def callbacks():
    return [Unfreeze()]


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model), loss, input_fn, callbacks=callbacks())
