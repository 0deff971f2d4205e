"""TorchMetrics: RetrievalFallOut itself, which also requires the indexes of queries."""

import torch
from shared import loop, net, table_schema, yes_or_no
from torch import nn
from torchmetrics.retrieval import RetrievalFallOut

GROUP = "Metrics"
EXPECT = (
    "refused: update(preds, target, indexes) would be called with two arguments; derive a class"
)
REFUSAL = r"RetrievalFallOut"

data_schema, input_fn = table_schema, yes_or_no
loss = nn.BCEWithLogitsLoss()


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def eval_metrics_fn():
    return {"fall_out": RetrievalFallOut(top_k=3)}


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn)
