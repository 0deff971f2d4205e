"""A LightningModule that creates its layers in `configure_model`."""

import lightning as L  # noqa: N812 - as its users call it
import torch
from shared import classes, fit_lightning, net, table_schema
from torch import nn
from torch.nn import functional

GROUP = "Lightning"

data_schema, input_fn = table_schema, classes


class Classifier(L.LightningModule):
    def __init__(self, num_classes=3):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Linear(8, 8)
        self.net = None

    def configure_model(self):
        # It may be called several times.
        if self.net is None:
            self.net = net(self.hparams.num_classes)

    def forward(self, x):
        return self.net(torch.tanh(self.embed(x)))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        self.log("val_loss", functional.cross_entropy(scores, y))
        self.log("val_acc", (scores.argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


def plain(data):
    return fit_lightning(data, Classifier(), input_fn)
