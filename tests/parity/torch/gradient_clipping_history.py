"""gradient_clipping: AutoClip, whose history of norms a callback keeps."""

import numpy as np
import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Gradients"
KILLED = True

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class AutoClip:
    def __init__(self):
        self.norms = []

    def on_train_begin(self):
        pass

    def __call__(self, parameters):
        parameters = list(parameters)
        self.norms.append(float(torch.stack([p.grad.norm() for p in parameters]).norm()))
        nn.utils.clip_grad_norm_(parameters, float(np.percentile(self.norms, 10)))


gradient_clipping = AutoClip()


def callbacks():
    return [gradient_clipping]


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, loss, input_fn, clip=AutoClip())
