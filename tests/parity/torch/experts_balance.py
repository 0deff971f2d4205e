"""A mixture of experts; the loss adds an attribute with their balance over the batch."""

import torch
from shared import loop, numbers, table_schema
from torch import nn
from torch.nn import functional

GROUP = "Losses"
EXPECT = {"workers": "refused: each worker would balance the experts over its own minibatch only"}
REFUSAL = r"batch"

data_schema, input_fn = table_schema, numbers


class Experts(nn.Module):
    def __init__(self, num_experts=4):
        super().__init__()
        self.gate = nn.Linear(8, num_experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1)) for _ in range(num_experts)
        )
        self.balance = None

    def forward(self, x):
        shares = self.gate(x).softmax(-1)
        chosen = functional.one_hot(shares.argmax(-1), len(self.experts)).float()
        self.balance = len(self.experts) * (shares.mean(0) * chosen.mean(0)).sum()
        outputs = torch.cat([expert(x) for expert in self.experts], dim=1)
        return (outputs * shares * chosen).sum(1, keepdim=True)


def custom_model():
    global model  # noqa: PLW0603 - as scripts do
    model = Experts()
    return model


def loss(labels, outputs):
    return functional.mse_loss(outputs, labels) + 0.1 * model.balance


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, lambda out, labels: loss(labels, out), input_fn)
