r"""A PyTorch recipe: warm-up and cosine schedule, clipped gradients, weight averages, a callback.

    elasticdl data sample digits --output=demo/data
    elasticdl train --model_zoo=examples --model_def=torch_recipe --data=demo/data/train \
        --validation_data=demo/data/test --num_epochs=6 --output=demo/torch_recipe
"""

import numpy as np
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

gradient_clipping = 1.0


def custom_model():
    """Return a network of two layers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def data_schema():
    """Say what a record holds."""
    return [
        {"name": "image", "shape": [28, 28], "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    """Make one batch."""
    images = np.stack([record["image"] for record in records]) / np.float32(255)
    return images, np.array([record["label"][0] for record in records if "label" in record])


loss = nn.CrossEntropyLoss(label_smoothing=0.05)


def optimizer(named_parameters, lr=0.005):
    """Return AdamW, without weight decay for biases."""
    decayed, others = [], []
    for name, parameter in named_parameters:
        (decayed if parameter.ndim > 1 else others).append((name, parameter))
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr, weight_decay=0.05)


def lr_scheduler(optimizer, warm_up=20, num_steps=140):
    """Return a warm-up and a cosine, which step after each update."""
    first = schedulers.LinearLR(optimizer, 0.1, total_iters=warm_up)
    then = schedulers.CosineAnnealingLR(optimizer, num_steps - warm_up)
    both = schedulers.SequentialLR(optimizer, [first, then], [warm_up])
    return {"scheduler": both, "interval": "step"}


def averaged_model(model):
    """Return an exponential moving average of the weights, which is validated and published."""
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))


class StopWhenGood:
    """Ends the training once the validation is good enough."""

    def __init__(self, accuracy):
        self.accuracy = accuracy

    def on_epoch_end(self, epoch, logs):
        """Compare the accuracy of the epoch's validation."""
        self.model.stop_training = logs.get("val_accuracy", 0) >= self.accuracy


def callbacks(accuracy=0.99):
    """Return the callbacks; they run on every worker, and their state is in the checkpoints."""
    return [StopWhenGood(accuracy)]


def eval_metrics_fn():
    """Return the share of digits that are right."""
    return {"accuracy": lambda labels, output: (output.argmax(1) == labels).float()}
