"""TorchMetrics: RetrievalFallOut in a derived class, with an example's query in its label."""

import numpy as np
import torch
from shared import loop, net, table_schema
from torch import nn
from torchmetrics.retrieval import RetrievalFallOut

GROUP = "Metrics"
EXPECT = {"workers": "refused: its states are lists of all predictions, which do not add up"}
REFUSAL = r"the states of the metric 'fall_out' .* do not add up: its state 'indexes' is a list"

data_schema = table_schema


def input_fn(records):
    """Return (x, (query, whether it is relevant)): each class is a query."""
    x = np.stack([record["x"] for record in records])
    query = np.stack([record["label"] for record in records])
    relevant = np.stack([record["y"] for record in records]) > 0
    return x, np.concatenate([query, relevant], axis=1).astype(np.float32)


def loss(output, labels):
    return nn.functional.binary_cross_entropy_with_logits(output[:, 0], labels[:, 1])


class FallOut(RetrievalFallOut):
    def update(self, preds, target):
        super().update(preds[:, 0], target[:, 1].bool(), indexes=target[:, 0].long())


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def eval_metrics_fn():
    return {"fall_out": FallOut(top_k=3)}


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, metrics=eval_metrics_fn())
