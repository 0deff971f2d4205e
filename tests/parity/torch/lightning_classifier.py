"""A LightningModule: training_step, validation_step, self.log, log_dict, save_hyperparameters."""

import lightning as L  # noqa: N812 - as its users call it
import torch
from shared import classes, fit_lightning, net, table_schema
from torch.nn import functional

GROUP = "Lightning"

data_schema, input_fn = table_schema, classes


class Classifier(L.LightningModule):
    def __init__(self, learning_rate=0.05):
        super().__init__()
        self.save_hyperparameters()
        self.net = net(3)

    def forward(self, x):
        return self.net(x)

    def _shared_step(self, batch, batch_idx, stage):
        x, y = batch
        scores = self(x)
        loss = functional.cross_entropy(scores, y)
        accuracy = (scores.argmax(1) == y).float().mean()
        self.log_dict(
            {f"{stage}_loss": loss, f"{stage}_acc": accuracy},
            on_step=False,
            on_epoch=True,
            prog_bar=True,
        )
        return loss

    def training_step(self, batch, batch_idx):
        return self._shared_step(batch, batch_idx, "train")

    def validation_step(self, batch, batch_idx):
        self._shared_step(batch, batch_idx, "val")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.learning_rate)


def plain(data):
    return fit_lightning(data, Classifier(), input_fn)
