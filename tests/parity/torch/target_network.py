"""Q-learning: a callback copies the policy into the target network, first and every few updates."""

import numpy as np
import torch
from shared import loop, net, table_schema
from torch import nn
from torch.nn import functional

GROUP = "Callbacks"
KILLED = True

data_schema = table_schema


def input_fn(records):
    """Return (state and next state, (action, reward, whether it goes on))."""
    state = np.stack([record["x"] for record in records])
    action = np.stack([record["label"] for record in records])
    reward = np.stack([record["y"] for record in records])
    features = {"state": state, "next_state": np.roll(state, 1, axis=1) * np.float32(0.9)}
    return features, np.concatenate([action, reward, action != 2], axis=1).astype(np.float32)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy, self.target = net(3), net(3)

    def forward(self, state, next_state):
        with torch.no_grad():
            future = self.target(next_state).amax(1)
        return {"values": self.policy(state), "future": future}


def loss(labels, predictions):
    action, reward, goes_on = labels.unbind(1)
    value = predictions["values"].gather(1, action.long()[:, None])[:, 0]
    expected = reward + 0.9 * goes_on * predictions["future"]
    return functional.smooth_l1_loss(value, expected)


class Target:
    """Copies the policy into the target network."""

    def __init__(self, every=4):
        self.every, self.updates = every, 0

    def on_train_begin(self):
        self.model.target.load_state_dict(self.model.policy.state_dict())

    def on_train_batch_end(self, batch):
        self.updates += 1
        if self.updates % self.every == 0:
            self.model.target.load_state_dict(self.model.policy.state_dict())


def callbacks():
    return [Target()]


def custom_model():
    return Agent()


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.02, amsgrad=True)


class Called(nn.Module):
    """Lets the plain loop give one features' dict to `forward`."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, features):
        return self.model(**features)


def plain(data):
    model = custom_model()
    model.target.load_state_dict(model.policy.state_dict())
    updates = 0

    def after_update():
        nonlocal updates
        updates += 1
        if updates % 4 == 0:
            model.target.load_state_dict(model.policy.state_dict())

    history, _ = loop(
        data, Called(model), optimizer(model.policy.parameters()),
        lambda out, labels: loss(labels, out), input_fn, after_update=after_update,
    )  # fmt: skip
    return history, model
