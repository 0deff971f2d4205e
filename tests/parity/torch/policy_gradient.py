"""REINFORCE on recorded actions: `distributions.Categorical` in the loss, with an entropy term."""

import numpy as np
import torch
from shared import loop, net, table_schema
from torch.distributions import Categorical

GROUP = "Losses"

data_schema = table_schema


def input_fn(records):
    x = np.stack([record["x"] for record in records])
    action = np.stack([record["label"][0] for record in records])
    reward = np.stack([record["y"][0] for record in records])
    return x, np.stack([action, reward], axis=1).astype(np.float32)


def loss(labels, predictions):
    policy = Categorical(logits=predictions)
    action, reward = labels[:, 0].long(), labels[:, 1]
    return -(policy.log_prob(action) * reward).mean() - 0.01 * policy.entropy().mean()


def custom_model():
    return net(3)


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def plain(data):
    model = custom_model()
    stepping = optimizer(model.parameters())
    return loop(data, model, stepping, lambda out, labels: loss(labels, out), input_fn)
