"""A LightningModule that logs AUROC of all predictions, and the largest error."""

import lightning as L  # noqa: N812 - as its users call it
import torch
from shared import classes, fit_lightning, net, table_schema
from torch.nn import functional
from torchmetrics import MaxMetric
from torchmetrics.classification import MulticlassAUROC

GROUP = "Lightning"
EXPECT = {
    "workers": "refused: their states are lists of all predictions, or a maximum, which do not add "
    "up"
}
REFUSAL = r"the states of the metric '(auroc|worst)' .* do not add up"

data_schema, input_fn = table_schema, classes


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net(3)
        self.val_auroc, self.worst = MulticlassAUROC(3), MaxMetric()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        self.val_auroc.update(scores, y)
        self.worst(functional.cross_entropy(scores, y, reduction="none"))
        self.log("val_loss", functional.cross_entropy(scores, y))
        self.log("val_auroc", self.val_auroc)
        self.log("val_worst", self.worst)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


def plain(data):
    return fit_lightning(data, Classifier(), input_fn)
