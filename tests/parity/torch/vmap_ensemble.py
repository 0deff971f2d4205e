"""A model ensemble with torch.func: stacked parameters, functional_call and vmap in `forward`."""

import copy

import torch
from shared import loop, net, numbers, table_schema
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

GROUP = "Models"

data_schema, input_fn = table_schema, numbers


class Ensemble(nn.Module):
    def __init__(self):
        super().__init__()
        models = [net() for _ in range(4)]
        parameters, _ = stack_module_state(models)
        self.names = list(parameters)
        self.stacked = nn.ParameterList([parameters[name].detach() for name in self.names])
        # In a list, so that it is no module of this one: only its structure is used.
        self.base = [copy.deepcopy(models[0]).to("meta")]

    def forward(self, x):
        def one(parameters, x):
            return functional_call(self.base[0], parameters, (x,))

        stacked = dict(zip(self.names, self.stacked, strict=True))
        return vmap(one, in_dims=(0, None))(stacked, x).transpose(0, 1)


def loss(labels, predictions):
    return ((predictions - labels[:, None]) ** 2).mean()


def custom_model():
    return Ensemble()


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def plain(data):
    model = custom_model()
    return loop(
        data,
        model,
        optimizer(model.parameters()),
        lambda outputs, labels: loss(labels, outputs),
        input_fn,
    )
