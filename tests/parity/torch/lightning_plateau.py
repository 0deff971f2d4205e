"""A LightningModule with ReduceLROnPlateau, which monitors a value logged in validation_step."""

import lightning as L  # noqa: N812 - as its users call it
import torch
from shared import fit_lightning, net, numbers, table_schema
from torch.nn import functional

GROUP = "Lightning"

data_schema, input_fn = table_schema, numbers


class Regression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()

    def training_step(self, batch):
        x, y = batch
        loss = functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch):
        x, y = batch
        loss = functional.mse_loss(self.net(x), y)
        self.log("val_loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, factor=0.3, patience=0, threshold=0.5
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"},
        }


def plain(data):
    return fit_lightning(data, Regression(), input_fn)
