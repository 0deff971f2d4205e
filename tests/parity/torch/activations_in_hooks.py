"""Feature distillation: hooks store a teacher's activations in a dict that the loss reads."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn
from torch.nn import functional

GROUP = "Losses"

data_schema, input_fn = table_schema, numbers
activations = {}


def keep(name):
    def hook(module, given, output):
        activations[name] = output

    return hook


class Imitating(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = net(), net().requires_grad_(False)
        self.student[1].register_forward_hook(keep("student"))
        self.teacher[1].register_forward_hook(keep("teacher"))

    def forward(self, x):
        with torch.no_grad():
            self.teacher(x)
        return self.student(x)


def loss(outputs, labels):
    imitation = functional.mse_loss(activations["student"], activations["teacher"])
    return functional.mse_loss(outputs, labels) + 0.5 * imitation


def custom_model():
    return Imitating()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
