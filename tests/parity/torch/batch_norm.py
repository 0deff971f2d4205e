"""nn.BatchNorm1d."""

import torch
from shared import classes, loop, table_schema
from torch import nn

GROUP = "Layers"
EXPECT = {"two workers": "differs: each worker normalizes with the statistics of its own minibatch"}

data_schema, input_fn = table_schema, classes
loss = nn.CrossEntropyLoss()


def custom_model():
    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def eval_metrics_fn():
    return {"metric": accuracy}


def accuracy(labels, predictions):
    return (predictions.argmax(1) == labels).float()


def plain(data):
    model = custom_model()

    def metric(outputs, labels):
        return accuracy(labels, outputs).mean()

    return loop(data, model, optimizer(model.parameters()), loss, input_fn, metric)
