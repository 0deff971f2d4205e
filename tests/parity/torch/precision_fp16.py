"""Precision in a model file: float16, with loss scaling."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Number formats"
EXPECT = {
    "two workers": "differs: half of a batch may overflow float16 where the whole batch does not",
}

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


precision = "fp16"
gradient_clipping = 0.5


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(
        data,
        model,
        stepping,
        loss,
        input_fn,
        clip=lambda p: nn.utils.clip_grad_norm_(p, 0.5),
        precision=torch.float16,
        scaler=torch.amp.GradScaler("cpu"),
    )
