"""A LightningModule that logs metrics of TorchMetrics as objects, and a MetricCollection."""

import lightning as L  # noqa: N812 - as its users call it
import torch
from shared import classes, fit_lightning, net, table_schema
from torch.nn import functional
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

GROUP = "Lightning"

data_schema, input_fn = table_schema, classes


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net(3)
        metrics = MetricCollection([MulticlassAccuracy(3), MulticlassF1Score(3)])
        self.train_metrics = metrics.clone(prefix="train_")
        self.val_metrics = metrics.clone(prefix="val_")
        self.micro = MulticlassAccuracy(3, average="micro")

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        loss = functional.cross_entropy(scores, y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        self.train_metrics.update(scores, y)
        self.log_dict(self.train_metrics, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        self.val_metrics(scores, y)
        self.micro(scores, y)
        self.log("val_loss", functional.cross_entropy(scores, y))
        self.log_dict(self.val_metrics)
        self.log("val_micro", self.micro, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


def plain(data):
    return fit_lightning(data, Classifier(), input_fn)
