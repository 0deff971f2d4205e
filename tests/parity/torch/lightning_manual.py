"""A LightningModule with `automatic_optimization = False`, as for a GAN."""

import lightning as L  # noqa: N812 - as its users call it
import torch
from shared import fit_lightning, net, numbers, table_schema
from torch.nn import functional

GROUP = "Lightning"
EXPECT = "refused: the module applies its own updates; return the loss from training_step"
REFUSAL = r"has automatic_optimization = False"

data_schema, input_fn = table_schema, numbers


class Manual(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = net()

    def training_step(self, batch, batch_idx):
        x, y = batch
        optimizer = self.optimizers()
        loss = functional.mse_loss(self.net(x), y)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.log("train_loss", loss, on_step=False, on_epoch=True)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", functional.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def plain(data):
    return fit_lightning(data, Manual(), input_fn)
