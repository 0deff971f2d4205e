"""An optimizer that wraps another one and has its own state (Lookahead around an Adam)."""

import torch
from shared import loop, net, numbers, table_schema
from torch import nn

GROUP = "Optimizers"
EXPECT = (
    "refused: a checkpoint holds the state of one optimizer; derive the class from the inner one"
)
REFUSAL = "keeps another optimizer, Adam"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Lookahead(torch.optim.Optimizer):
    def __init__(self, optimizer, k, alpha):
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.optimizer, self.k, self.alpha = optimizer, k, alpha
        self.param_groups = optimizer.param_groups
        for group in self.param_groups:
            group["counter"] = 0

    @torch.no_grad()
    def update(self, group):
        for fast in group["params"]:
            state = self.state[fast]
            if "slow" not in state:
                state["slow"] = torch.zeros_like(fast)
                state["slow"].copy_(fast)
            slow = state["slow"]
            slow += (fast - slow) * self.alpha
            fast.copy_(slow)

    def step(self, closure=None):
        value = self.optimizer.step(closure)
        for group in self.param_groups:
            if group["counter"] == 0:
                self.update(group)
            group["counter"] = (group["counter"] + 1) % self.k
        return value


def custom_model():
    return net()


def optimizer(parameters):
    return Lookahead(torch.optim.Adam(parameters, lr=0.05), k=4, alpha=0.5)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
