"""An average whose decay a callback changes after each batch (`avg_fn` reads the callback)."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn
from torch.optim import swa_utils

GROUP = "Weight averages"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Decay:
    def __init__(self):
        self.decay = 0.5

    def on_train_batch_end(self, batch, logs):
        self.decay += 0.9 * (0.99 - self.decay) * 0.1


schedule = Decay()


def custom_model():
    return net()


def averaged_model(model):
    def follow(average, current, num_averaged):
        return average + (1 - schedule.decay) * (current - average)

    return swa_utils.AveragedModel(model, avg_fn=follow)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def callbacks():
    return [schedule]


def plain(data):
    model = custom_model()
    return loop(
        data, model, optimizer(model.parameters()), loss, input_fn,
        average=averaged_model(model), callbacks=callbacks(),
    )  # fmt: skip
