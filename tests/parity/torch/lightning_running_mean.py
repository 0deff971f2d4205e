"""A LightningModule that logs a RunningMean of TorchMetrics as an object."""

import lightning as L  # noqa: N812 - as its users call it
import torch
from shared import classes, fit_lightning, net, table_schema
from torch.nn import functional
from torchmetrics.aggregation import RunningMean

GROUP = "Lightning"
EXPECT = "refused: it counts its values outside its states, so no checkpoint holds the count"
REFUSAL = r"the metric 'running' \(RunningMean\) is a wrapper \(Running\)"

data_schema, input_fn = table_schema, classes


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net(3)
        self.running = RunningMean(window=5)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = functional.cross_entropy(self(x), y)
        self.running(loss)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        self.log("train_running", self.running, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        self.log("val_loss", functional.cross_entropy(scores, y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


def plain(data):
    return fit_lightning(data, Classifier(), input_fn)
