"""Modules of PyTorch's notes: own layers, lists and dicts of layers, buffers, forward hooks."""

import torch
from shared import loop, numbers, table_schema
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as in the notes

GROUP = "Models"

data_schema, input_fn = table_schema, numbers


class MyLinear(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(in_features, out_features))
        self.bias = nn.Parameter(torch.randn(out_features))

    def forward(self, x):
        return (x @ self.weight) + self.bias


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l0 = MyLinear(4, 3)
        self.l1 = MyLinear(3, 4)

    def forward(self, x):
        return self.l1(F.relu(self.l0(x)))


class DynamicNet(nn.Module):
    def __init__(self, num_layers):
        super().__init__()
        self.linears = nn.ModuleList([MyLinear(4, 4) for _ in range(num_layers)])
        self.activations = nn.ModuleDict({"relu": nn.ReLU(), "lrelu": nn.LeakyReLU()})
        self.final = MyLinear(4, 2)

    def forward(self, x, act):
        for linear in self.linears:
            x = linear(x)
        x = self.activations[act](x)
        return self.final(x)


class StatefulModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.param1 = nn.Parameter(torch.randn(2))
        self.register_parameter("param2", nn.Parameter(torch.randn(2)))
        self.register_parameter("param3", None)
        self.param_list = nn.ParameterList([nn.Parameter(torch.randn(2)) for _ in range(3)])
        self.param_dict = nn.ParameterDict(
            {"foo": nn.Parameter(torch.randn(2)), "bar": nn.Parameter(torch.randn(2))}
        )
        self.register_buffer("buffer1", torch.randn(2), persistent=True)
        self.register_buffer("buffer2", torch.randn(2), persistent=False)
        self.register_buffer("buffer3", None)
        self.linear = nn.Linear(2, 3)

    def forward(self, x):
        x = x * self.param1 + self.param2 + self.buffer1 * torch.tanh(self.buffer2)
        for parameter in self.param_list:
            x = x + 0.1 * parameter
        return self.linear(x * self.param_dict["foo"] + self.param_dict["bar"])


class BigNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = MyLinear(8, 4)
        self.net = Net()
        self.dynamic = DynamicNet(2)
        self.stateful = StatefulModule()
        self.l2 = MyLinear(3, 1)

    def forward(self, x):
        x = self.net(self.l1(x))
        x = self.dynamic(x, "lrelu" if self.training else "relu")
        return self.l2(self.stateful(x))


def forward_pre_hook(m, inputs):
    return inputs[0] + 1.0


def forward_hook(m, inputs, output):
    return output + inputs[0]


def custom_model():
    model = BigNet()
    for linear in model.dynamic.linears:
        linear.register_forward_pre_hook(forward_pre_hook)
        linear.register_forward_hook(forward_hook)
    return model


def loss(output, labels):
    return torch.abs(output - labels).mean()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=1e-4, weight_decay=1e-2, momentum=0.9)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
