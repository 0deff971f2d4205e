"""Contrastive loss with minibatches of one example and `--global_batch_size`."""

import torch
from shared import classes, loop, net, table_schema
from torch.nn import functional

GROUP = "Losses"
EXPECT = "refused: a single example has no negatives"
REFUSAL = "negatives|batch"
JOB = {"minibatch_size": 1, "global_batch_size": 8}

data_schema, input_fn = table_schema, classes


def loss(labels, predictions):
    unit = functional.normalize(predictions)
    same = (labels[:, None] == labels[None, :]).float()
    return functional.binary_cross_entropy_with_logits(unit @ unit.t() * 3, same)


def custom_model():
    return net(4)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(
        data,
        model,
        optimizer(model.parameters()),
        lambda outputs, labels: loss(labels, outputs),
        input_fn,
    )
