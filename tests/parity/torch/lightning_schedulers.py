"""A LightningModule with parameter groups, a warm-up by step and a decay by epoch."""

import lightning as L  # noqa: N812 - as its users call it
import torch
from shared import fit_lightning, net, numbers, table_schema
from torch.optim.lr_scheduler import ExponentialLR, LinearLR

GROUP = "Lightning"

data_schema, input_fn = table_schema, numbers


class Regression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()
        self.loss = torch.nn.MSELoss()

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = self.loss(self.net(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return {"loss": loss}

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", self.loss(self.net(x), y))

    def configure_optimizers(self):
        head, rest = self.net[2].parameters(), self.net[0].parameters()
        optimizer = torch.optim.SGD([{"params": head}, {"params": rest, "lr": 0.02}], lr=0.1)
        warm_up = LinearLR(optimizer, 0.1, total_iters=5)
        return [optimizer], [
            {"scheduler": warm_up, "interval": "step", "name": "warm-up"},
            ExponentialLR(optimizer, 0.8),
        ]


def plain(data):
    return fit_lightning(data, Regression(), input_fn)
