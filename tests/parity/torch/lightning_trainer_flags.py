"""A LightningModule with the Trainer's gradient_clip_val and precision="bf16-mixed"."""

import lightning as L  # noqa: N812 - as its users call it
import torch
from shared import classes, fit_lightning, net, table_schema
from torch.nn import functional

GROUP = "Lightning"
EXPECT = {
    "two workers": "equal within 0.02: two halves of a batch round to bfloat16 differently from "
    "the whole"
}

data_schema, input_fn = table_schema, classes
gradient_clipping = 0.1
precision = "bf16-mixed"


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net(3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", functional.cross_entropy(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)


def plain(data):
    return fit_lightning(
        data, Classifier(), input_fn, gradient_clip_val=0.1, precision="bf16-mixed"
    )
