"""BCEWithLogitsLoss with pos_weight."""

import torch
from shared import loop, net, table_schema, yes_or_no
from torch import nn

GROUP = "Losses"

data_schema, input_fn = table_schema, yes_or_no
loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0]))


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
