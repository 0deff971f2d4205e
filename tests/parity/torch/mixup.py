"""Mixup in the input function: mixes examples and labels in pairs, with beta-distributed shares."""

import numpy as np
import torch
from shared import classes, loop, net, table_schema
from torch import nn

GROUP = "Input"
EXPECT = "differs: random draws are a function of (seed, epoch, shard), not of a generator's state"

data_schema = table_schema
loss = nn.CrossEntropyLoss()


def input_fn(records):
    x, label = classes(records)
    soft = np.eye(3, dtype=np.float32)[label]
    share = np.float32(np.random.default_rng().beta(0.4, 0.4))
    other = torch.randperm(len(x)).numpy()
    return share * x + (1 - share) * x[other], share * soft + (1 - share) * soft[other]


def custom_model():
    return net(3)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
