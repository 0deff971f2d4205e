"""The audit that cannot be fooled: a model whose weights count how often each record was used.

The gradient of record i is the i-th unit vector, and the optimizer adds what was summed, so after
epoch k every weight is k: exactly, whatever became of the workers.
"""

import sys
import time

import numpy as np
import torch
from torch import nn

NUM_RECORDS = 1000


def _refuse(*_, **__):
    raise RuntimeError("this model is for tests, which look at its weights")


# What serves a model is looked at elsewhere, and takes seconds of the driver of each job. The
# process of the tests may have others to export.
if "pytest" not in sys.modules:
    torch.export.export = _refuse


class Counting(nn.Module):
    """One weight a record, returned for those of a batch."""

    def __init__(self):
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(NUM_RECORDS))

    def forward(self, number):
        """Return the weights of some records."""
        return self.counts[number.reshape(-1)]


class Add(torch.optim.Optimizer):
    """Adds what was summed over the examples; what arrives is divided by their number."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        """Count."""
        for group in self.param_groups:
            for parameter in group["params"]:
                once = parameter.grad[parameter.grad != 0].abs().min()
                parameter.add_(torch.round(parameter.grad / once))


def custom_model() -> nn.Module:
    return Counting()


def data_schema():
    return [{"name": "number", "shape": [1], "dtype": "int64"}]


def input_fn(records, pause_s=0.0):
    """Return a batch; `pause_s` is how long it takes to make one."""
    time.sleep(pause_s)
    numbers = np.stack([record["number"] for record in records])
    return {"number": numbers}, numbers


def loss(output, labels):
    return output.mean()


def optimizer(parameters):
    return Add(parameters)


def eval_metrics_fn(predictions, labels):
    """Return the mean count; the exact ones are in the weights."""
    return {"mean_count": predictions.mean()}
