"""averaged_model(model): a class that averages after every third update, and counts them itself."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

GROUP = "Weight averages"
EXPECT = "refused: no checkpoint holds the count; make it a buffer of the average"
REFUSAL = "the attribute calls of the average changes"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Seldom(AveragedModel):
    def __init__(self, model):
        super().__init__(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.calls = 0

    def update_parameters(self, model):
        if self.calls % 3 == 0:
            super().update_parameters(model)
        self.calls += 1


def custom_model():
    return net()


def averaged_model(model):
    return Seldom(model)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    average = averaged_model(model)
    return loop(data, model, optimizer(model.parameters()), loss, input_fn, average=average)
