"""Sharpness-aware minimization: an optimizer whose `step` requires a closure."""

import torch
from shared import net, numbers, table_schema
from torch import nn

GROUP = "Optimizers"
EXPECT = "refused: it evaluates the loss again within a step"
REFUSAL = r"step\(\) of SAM raised(.|\n)*without a closure"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class SAM(torch.optim.SGD):
    """Goes where the loss is higher, and down from there by the gradient of that place."""

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is not None, "Sharpness Aware Minimization requires closure"
        weights = [w for group in self.param_groups for w in group["params"]]
        norm = torch.stack([w.grad.norm() for w in weights]).norm()
        before = [w.clone() for w in weights]
        for weight in weights:
            weight.add_(weight.grad, alpha=0.05 / float(norm))
        with torch.enable_grad():
            value = closure()
        for weight, old in zip(weights, before, strict=True):
            weight.copy_(old)
        super().step()
        return value


def custom_model():
    return net()


def optimizer(parameters):
    return SAM(parameters, lr=0.1)


def plain(data):
    model = custom_model()
    sam = optimizer(model.parameters())
    losses = []
    for _ in range(data.epochs):
        total = 0.0
        for first in range(0, len(data.train), data.batch_size):
            x, y = map(torch.tensor, input_fn(data.train[first:][: data.batch_size]))

            def again(x=x, y=y):
                sam.zero_grad()
                value = loss(model(x), y)
                value.backward()
                return value

            total += float(again()) * len(y)
            sam.step(again)
        losses.append(total / len(data.train))
    return {"loss": losses}, model
