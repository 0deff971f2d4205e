"""CrossEntropyLoss with class weights."""

import torch
from shared import classes, loop, net, table_schema
from torch import nn

GROUP = "Losses"
EXPECT = {
    "workers": (
        "refused: it divides by the summed weight of a batch; return sample weights instead"
    ),
}
REFUSAL = "mean over the batch|halves|weight"

data_schema, input_fn = table_schema, classes
loss = nn.CrossEntropyLoss(weight=torch.tensor([0.5, 1.0, 3.0]))


def custom_model():
    return net(3)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
