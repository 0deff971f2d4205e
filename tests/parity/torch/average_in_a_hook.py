"""torch.optim.swa_utils.AveragedModel (EMA) in a hook of the optimizer."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

GROUP = "Weight averages"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


def custom_model():
    return net()


def optimizer(parameters):
    weights = list(parameters)
    optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9)
    holder = nn.ParameterList(weights)
    ema = AveragedModel(holder, multi_avg_fn=get_ema_multi_avg_fn(0.8))

    def average(*_):
        ema.update_parameters(holder)
        # Pull what is trained towards its average now and then.
        if int(ema.n_averaged) % 5 == 0:
            with torch.no_grad():
                for weight, mean in zip(weights, ema.module, strict=True):
                    weight.lerp_(mean, 0.5)

    optimizer.register_step_post_hook(average)
    return optimizer


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
