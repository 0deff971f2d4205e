"""A callback that averages the weights in a copy of the model (mean teacher)."""

import copy

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Teacher:
    def on_train_begin(self):
        self.teacher = copy.deepcopy(self.model).requires_grad_(False)

    def on_train_batch_end(self, batch, logs):
        weights = zip(self.teacher.parameters(), self.model.parameters(), strict=True)
        with torch.no_grad():
            for mine, other in weights:
                mine.lerp_(other, 0.2)
                # The model is pulled back, so that the teacher is part of each step.
                other.lerp_(mine, 0.1)


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def callbacks():
    return [Teacher()]


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, callbacks=callbacks())
