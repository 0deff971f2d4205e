"""A LightningModule with `self.log(..., batch_size=, prog_bar=, logger=)`."""

import lightning as L  # noqa: N812 - as its users call it
import torch
from shared import classes, fit_lightning, net, table_schema
from torch.nn import functional

GROUP = "Lightning"

data_schema, input_fn = table_schema, classes


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net(3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self.net(x)
        loss = functional.cross_entropy(scores, y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(x))
        # For the progress bar only.
        accuracy = (scores.argmax(1) == y).float().mean()
        self.log("train_acc", accuracy, on_step=False, on_epoch=True, prog_bar=True, logger=False)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        scores = self.net(x)
        self.log("val_loss", functional.cross_entropy(scores, y), batch_size=len(x))
        self.log("val_confidence", scores.softmax(1).amax(1).mean(), prog_bar=True, logger=False)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def plain(data):
    return fit_lightning(data, Classifier(), input_fn)
