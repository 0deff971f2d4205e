"""A LightningModule with a frozen TransformerEncoder in its training_step."""

import lightning
import torch
from shared import fit_lightning, tokens, tokens_schema
from torch import nn

GROUP = "Lightning"

data_schema, input_fn = tokens_schema, tokens


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 1)

    def forward(self, tokens):
        states = self.encoder(self.embedding(tokens), src_key_padding_mask=tokens == 0)
        return self.head(states.mean(1))


class Student(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.scorer = Scorer()
        # In a list, so that training does not complain about a module in evaluation mode.
        self.teachers = [Scorer().requires_grad_(False).eval()]

    def forward(self, tokens):
        return self.scorer(tokens)

    def training_step(self, batch, batch_idx):
        tokens, labels = batch
        scores = self(tokens)
        with torch.no_grad():
            soft = self.teachers[0](tokens)
        loss = nn.functional.mse_loss(scores, labels) + nn.functional.mse_loss(scores, soft)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        tokens, labels = batch
        self.log("val_loss", nn.functional.mse_loss(self(tokens), labels))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def plain(data):
    return fit_lightning(data, Student(), input_fn)
