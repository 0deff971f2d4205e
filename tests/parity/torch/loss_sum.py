"""`reduction="sum"`."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Losses"
EXPECT = {"workers": "refused: workers add up means; use the default reduction"}
REFUSAL = "mean over the batch|halves"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss(reduction="sum")


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.01)


def plain(data):
    model = custom_model()
    history, model = loop(data, model, optimizer(model.parameters()), loss, input_fn)
    del history["val_loss"], history["loss"]
    return {"epochs": [0] * data.epochs}, model
