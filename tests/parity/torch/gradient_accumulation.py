"""Gradient accumulation over four minibatches, with clipping (`--global_batch_size`)."""

import torch
from shared import net, numbers, table_schema
from torch import nn

GROUP = "Gradients"
JOB = {"minibatch_size": 2, "global_batch_size": 8}

data_schema, input_fn = table_schema, numbers
loss = nn.MSELoss()
gradient_clipping = 1.0


def custom_model():
    return net()


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.02)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    accumulation = 4
    history = {"loss": [], "val_loss": []}

    def batches(records, size):
        for first in range(0, len(records), size):
            yield map(torch.tensor, input_fn(records[first : first + size]))

    for _ in range(data.epochs):
        model.train()
        total = 0.0
        minibatches = list(batches(data.train, 2))
        for i, (x, y) in enumerate(minibatches):
            value = loss(model(x), y)
            total += value.item() * len(x)
            # The last update of an epoch may have fewer.
            first = i - i % accumulation
            (value / len(minibatches[first : first + accumulation])).backward()
            if (i + 1) % accumulation == 0 or i + 1 == len(minibatches):
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
                stepping.step()
                stepping.zero_grad(set_to_none=True)
        history["loss"].append(total / len(data.train))
        model.eval()
        total = 0.0
        with torch.no_grad():
            for x, y in batches(data.validation, 8):
                total += loss(model(x), y).item() * len(x)
        history["val_loss"].append(total / len(data.validation))
    return history, model
