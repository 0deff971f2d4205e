"""torch.jit.script: a compiled LSTM with a custom cell."""

import warnings

import torch
from shared import loop, series, series_schema
from torch import Tensor, nn

GROUP = "Models"

data_schema, input_fn = series_schema, series
loss = nn.MSELoss()


# PyTorch 2.13 has deprecated it; people's files are older.
warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)


class Cell(torch.jit.ScriptModule):
    def __init__(self):
        super().__init__()
        self.weight_x = nn.Parameter(torch.randn(16, 3) * 0.3)
        self.weight_h = nn.Parameter(torch.randn(16, 4) * 0.3)
        self.norm = nn.LayerNorm(16)

    @torch.jit.script_method
    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        gates = self.norm(torch.mm(x, self.weight_x.t()) + torch.mm(h, self.weight_h.t()))
        into, forget, new, out = gates.chunk(4, 1)
        c = torch.sigmoid(forget) * c + torch.sigmoid(into) * torch.tanh(new)
        return torch.sigmoid(out) * torch.tanh(c), c


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = Cell()
        self.head = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)))

    def forward(self, x):
        h = c = x.new_zeros(len(x), 4)
        for moment in x.unbind(1):
            h, c = self.cell(moment, h, c)
        return self.head(h)


def custom_model():
    return Net()


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
