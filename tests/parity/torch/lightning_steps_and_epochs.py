"""A LightningModule that logs a loss `on_step` and `on_epoch`, and its learning rate."""

import lightning as L  # noqa: N812 - as its users call it
import torch
from shared import fit_lightning, net, numbers, table_schema
from torch.nn import functional

GROUP = "Lightning"
EXPECT = "refused: steps cannot access the optimizer; do not log the learning rate in a step"
REFUSAL = r"self\.optimizers"

data_schema, input_fn = table_schema, numbers


class Regressor(L.LightningModule):
    def __init__(self, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.net = net()

    def _shared_step(self, batch, stage):
        x, y = batch
        loss = functional.mse_loss(self.net(x), y)
        self.log(f"{stage}_loss", loss, on_epoch=True, sync_dist=True, batch_size=x.size(0))
        return loss

    def training_step(self, batch, batch_idx):
        loss = self._shared_step(batch, "train")
        rate = self.optimizers().param_groups[0]["lr"]
        self.log("lr", rate, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self._shared_step(batch, "val")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def plain(data):
    history, module = fit_lightning(data, Regressor(), input_fn)
    return history, module
