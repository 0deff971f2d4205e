"""Weight decay on weights only: parameter groups by name."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Optimizers"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(named_parameters):
    decayed, others = [], []
    for name, parameter in named_parameters:
        (others if name.endswith("bias") else decayed).append((name, parameter))
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=0.02,
    )


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.named_parameters()), loss, input_fn)
