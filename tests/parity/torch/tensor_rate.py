"""A learning rate that is a tensor, `fused`, and warm restarts in a hook of the optimizer."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Learning rate schedules"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    optimizer = torch.optim.AdamW(parameters, lr=torch.tensor(0.03), fused=True, amsgrad=True)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4),
            torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5),
        ],
        milestones=[4],
    )

    def advance(*_):
        schedule.step()

    optimizer.register_step_post_hook(advance)
    return optimizer


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
