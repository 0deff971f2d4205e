r"""A LightningModule with its data module, trained without Lightning's Trainer.

    elasticdl train --model_zoo=examples --model_def=lightning_digits --params="lr=0.005" \
        --data=. --num_epochs=6 --output=demo/lightning_digits
    elasticdl evaluate --trained_model=demo/lightning_digits --data=.

`--data` is the argument `data_dir` of the data module, which needs none: its digits come from
scikit-learn.
"""

import lightning
import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Digits(lightning.LightningModule):
    """Ten scores from the 64 pixels of a digit."""

    def __init__(self, lr=0.001):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
        )

    def forward(self, x):
        """Return scores, [batch, 10]."""
        return self.net(x)

    def training_step(self, batch, batch_idx):
        """Return the loss of a batch."""
        x, y = batch
        return functional.cross_entropy(self(x), y)

    def validation_step(self, batch, batch_idx):
        """Log the loss and the share of digits that are right."""
        x, y = batch
        scores = self(x)
        self.log("val_loss", functional.cross_entropy(scores, y))
        self.log("val_accuracy", (scores.argmax(1) == y).float().mean())

    def configure_optimizers(self):
        """Return Adam and a schedule, which steps after each epoch."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


class DigitsData(lightning.LightningDataModule):
    """Every fifth digit is for validation."""

    def __init__(self, data_dir="."):
        super().__init__()
        self.data_dir = data_dir

    def setup(self, stage):
        """Read the digits."""
        images, labels = load_digits(return_X_y=True)
        self.x, self.y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
        self.is_validation = torch.arange(len(labels)) % 5 == 0

    def train_dataloader(self):
        """Return the training digits, shuffled."""
        chosen = ~self.is_validation
        return DataLoader(TensorDataset(self.x[chosen], self.y[chosen]), 32, shuffle=True)

    def val_dataloader(self):
        """Return the others."""
        chosen = self.is_validation
        return DataLoader(TensorDataset(self.x[chosen], self.y[chosen]), 64)
