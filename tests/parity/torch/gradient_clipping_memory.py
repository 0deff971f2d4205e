"""gradient_clipping: AutoClip, whose history of norms no checkpoint contains."""

import numpy as np
import torch
from shared import net, numbers, table_schema
from torch import nn

GROUP = "Gradients"
EXPECT = "refused: no checkpoint contains its state; keep it in an attribute of a callback"
REFUSAL = r"gradient_clipping\(\) keeps state that changes with every call"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()
norms = []


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def gradient_clipping(parameters):
    norms.append(float(torch.stack([p.grad.norm() for p in parameters]).norm()))
    nn.utils.clip_grad_norm_(parameters, float(np.percentile(norms, 10)))
