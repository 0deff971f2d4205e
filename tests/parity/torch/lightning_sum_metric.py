"""A LightningModule that logs a SumMetric of TorchMetrics as an object."""

import lightning as L  # noqa: N812 - as its users call it
import torch
from shared import classes, fit_lightning, net, table_schema
from torch.nn import functional
from torchmetrics.aggregation import SumMetric

GROUP = "Lightning"

data_schema, input_fn = table_schema, classes


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net(3)
        self.correct = SumMetric()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        self.correct.update((scores.argmax(1) == y).float())
        self.log("val_loss", functional.cross_entropy(scores, y))
        self.log("val_correct", self.correct)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


def plain(data):
    return fit_lightning(data, Classifier(), input_fn)
