"""A TransformerEncoder that computes its own loss: padded positions are zeros in evaluation."""

import torch
from shared import tokens, tokens_schema
from torch import nn

GROUP = "Models"

data_schema, input_fn = tokens_schema, tokens


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 1)

    def forward(self, tokens, labels=None):
        states = self.encoder(self.embedding(tokens), src_key_padding_mask=tokens == 0)
        scores = self.head(states.mean(1))
        if labels is None:
            return {"scores": scores}
        return {"loss": nn.functional.mse_loss(scores, labels), "scores": scores}


def custom_model():
    return Scorer()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def eval_metrics_fn(predictions, labels):
    return {"metric": ((predictions["scores"] - labels) ** 2).mean(1)}


def plain(data):
    model = custom_model()
    updates = optimizer(model.parameters())
    history = {"loss": [], "val_loss": [], "val_metric": []}

    def batches(records):
        for start in range(0, len(records), data.batch_size):
            examples = records[start : start + data.batch_size]
            yield len(examples), *(torch.tensor(array) for array in input_fn(examples))

    for _ in range(data.epochs):
        total = 0.0
        for size, features, labels in batches(data.train):
            model.train()
            updates.zero_grad()
            loss = model(features, labels=labels)["loss"]
            loss.backward()
            updates.step()
            total += size * loss.item()
        history["loss"].append(total / len(data.train))
        model.eval()
        with torch.no_grad():
            losses = [
                size * model(features, labels=labels)["loss"].item()
                for size, features, labels in batches(data.validation)
            ]
        history["val_loss"].append(sum(losses) / len(data.validation))
        history["val_metric"].append(history["val_loss"][-1])
    return history, model
