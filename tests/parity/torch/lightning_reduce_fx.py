"""A LightningModule with `self.log(..., reduce_fx="max")`: the largest error of an epoch."""

import lightning as L  # noqa: N812 - as its users call it
import torch
from shared import fit_lightning, net, numbers, table_schema
from torch.nn import functional

GROUP = "Lightning"
EXPECT = "refused: logged values are means over the examples; log a metric that is a maximum"
REFUSAL = "reduce_fx"

data_schema, input_fn = table_schema, numbers


class Regressor(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        errors = (self.net(x) - y).abs()
        self.log("val_loss", functional.mse_loss(self.net(x), y))
        self.log("val_worst", errors.max(), reduce_fx="max")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def plain(data):
    return fit_lightning(data, Regressor(), input_fn)
