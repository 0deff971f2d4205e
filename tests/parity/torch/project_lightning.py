"""The autoencoder of Lightning's introduction: encoder and decoder given to the module."""

import lightning as L  # noqa: N812 - as its users call it
import numpy as np
import torch
from shared import fit_lightning, table_schema
from torch import nn

GROUP = "Projects"
KILLED = True

data_schema = table_schema


def input_fn(records):
    return np.stack([record["x"] for record in records]), np.zeros(len(records), np.int64)


class LitAutoEncoder(L.LightningModule):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, x):
        return self.encoder(x)

    def training_step(self, batch, batch_idx):
        x, _ = batch
        x = x.view(x.size(0), -1)
        z = self.encoder(x)
        x_hat = self.decoder(z)
        loss = nn.functional.mse_loss(x_hat, x)
        self.log("train_loss", loss, on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch, batch_idx):
        x, _ = batch
        x = x.view(x.size(0), -1)
        x_hat = self.decoder(self.encoder(x))
        self.log("val_loss", nn.functional.mse_loss(x_hat, x))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def custom_model():
    encoder = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    decoder = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 8))
    return LitAutoEncoder(encoder, decoder)


def plain(data):
    return fit_lightning(data, custom_model(), input_fn)
