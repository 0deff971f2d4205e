"""Momentum contrast (MoCo): a momentum encoder, and a queue of its keys."""

import copy

import numpy as np
import torch
from shared import loop, net, table_schema
from torch import nn
from torch.nn import functional

GROUP = "Models"
EXPECT = {
    "workers": "refused: `forward` changes parameters in place, which workers would do separately",
}
REFUSAL = "changes its parameter encoder_k"

data_schema = table_schema
loss = nn.CrossEntropyLoss()


def input_fn(records):
    x = np.stack([record["x"] for record in records])
    views = {"query": x, "key": x[:, ::-1].copy()}
    return views, np.zeros(len(x), np.int64)


class MomentumContrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder_q = net(4)
        self.encoder_k = copy.deepcopy(self.encoder_q)
        self.encoder_k.requires_grad_(False)
        self.register_buffer("queue", functional.normalize(torch.randn(4, 24), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def follow(self):
        pairs = zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True)
        for query, key in pairs:
            key.mul_(0.9).add_(query, alpha=0.1)

    @torch.no_grad()
    def enqueue(self, keys):
        places = (self.queue_ptr + torch.arange(len(keys))) % 24
        self.queue[:, places] = keys.t()
        self.queue_ptr[0] = (self.queue_ptr[0] + len(keys)) % 24

    def forward(self, views):
        query = functional.normalize(self.encoder_q(views["query"]), dim=1)
        with torch.no_grad():
            if self.training:
                self.follow()
            key = functional.normalize(self.encoder_k(views["key"]), dim=1)
        positive = (query * key).sum(1, keepdim=True)
        logits = torch.cat([positive, query @ self.queue.clone()], dim=1) / 0.2
        if self.training:
            self.enqueue(key)
        return logits


def custom_model():
    return MomentumContrast()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def plain(data):
    model = custom_model()
    return loop(data, model, optimizer(model.parameters()), loss, input_fn)
