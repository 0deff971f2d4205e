"""A memory bank of the hardest negatives, which the loss keeps from batch to batch."""

import torch
from shared import classes, loop, net, table_schema
from torch import nn
from torch.nn import functional

GROUP = "Losses"
EXPECT = "refused: no checkpoint keeps the buffers of a loss; make them buffers of the model"
REFUSAL = "the loss keeps state that changes with every call"

data_schema, input_fn = table_schema, classes


class BankLoss(nn.Module):
    def __init__(self, size=16, hardest=5):
        super().__init__()
        self.hardest = hardest
        self.register_buffer("bank", torch.zeros(size, 4))
        self.register_buffer("kinds", torch.full((size,), -1))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))

    def forward(self, outputs, labels):
        keys = functional.normalize(outputs, dim=1)
        likeness = keys @ self.bank.t() / 0.5
        other = labels[:, None] != self.kinds[None]
        hard = likeness.masked_fill(~other, -10.0).topk(self.hardest, dim=1).values
        same = likeness.masked_fill(other, 0.0).sum(1) / (~other).sum(1).clamp(min=1)
        if self.training:
            with torch.no_grad():
                at = (self.place + torch.arange(len(keys))) % len(self.bank)
                self.bank[at] = keys
                self.kinds[at] = labels
                self.place += len(keys)
        return (hard.logsumexp(1) - same).mean()


loss = BankLoss()


def custom_model():
    return net(4)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
