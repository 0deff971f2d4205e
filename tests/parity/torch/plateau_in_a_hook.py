"""ReduceLROnPlateau in a hook of the optimizer, which monitors the norm of the gradient."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Learning rate schedules"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    weights = list(parameters)
    optimizer = torch.optim.SGD(weights, lr=0.2)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.7, patience=1, cooldown=1, threshold=0.05
    )

    def follow(*_):
        scheduler.step(torch.nn.utils.get_total_norm([weight.grad for weight in weights]))

    optimizer.register_step_post_hook(follow)
    return optimizer


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
