"""F.gumbel_softmax in `forward`: a straight-through discrete code, annealed by a buffer."""

import torch
from shared import loop, numbers, table_schema
from torch import nn
from torch.nn import functional

GROUP = "Layers"
EXPECT = "differs: random draws are a function of (seed, step, worker), not of a generator's state"

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()


class Discrete(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 12), nn.Linear(12, 1)
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        logits = self.encoder(x).view(-1, 3, 4)
        if self.training:
            self.steps += 1
            tau = torch.clamp(0.95**self.steps, min=0.5)
            code = functional.gumbel_softmax(logits, tau=tau, hard=True)
        else:
            code = functional.one_hot(logits.argmax(-1), 4).float()
        return self.decoder(code.flatten(1))


def custom_model():
    return Discrete()


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.02)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
