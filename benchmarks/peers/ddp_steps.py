"""What the peers' scripts share: the steps of `zoo/cnn_torch.py` in DistributedDataParallel.

As their guides have it: every rank takes its part of each global minibatch, rank 0 keeps a
checkpoint each 100 steps, and after a failure all of them go on from the newest one. The records
are arrays in memory.
"""

import os
import sys
from pathlib import Path

# One thread a worker, as ours; read when torch is loaded.
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent.parent / "zoo"))

import cnn_torch as zoo
import numpy as np
import torch
from step_lines import tell

CHECKPOINT_STEPS = 100


def create():
    """Return the model and its optimizer, the same on every rank."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = zoo.custom_model()
    return model, zoo.optimizer(model.parameters())


def states(step, model, optimizer):
    """Return a checkpoint of a model (not of what wraps it)."""
    return {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}


def load(path, model, optimizer):
    """Take over a checkpoint; return its step."""
    checkpoint = torch.load(path, weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    return checkpoint["step"]


def train(wrapped, optimizer, first_step, *, rank, world_size, data, minibatch_size, save):
    """Train until the process is ended from outside.

    Args:
        wrapped: The model in DistributedDataParallel.
        optimizer: Its optimizer.
        first_step: Steps it has behind it.
        rank: Which of the processes this is.
        world_size: How many they are.
        data: A .npz file with `image` and `label`.
        minibatch_size: Records of a rank in a step.
        save: Called on every rank with the step when a checkpoint is due.
    """
    arrays = np.load(data)
    images, labels = torch.from_numpy(arrays["image"]), torch.from_numpy(arrays["label"])
    num_records, step = len(images), first_step
    epoch, order = -1, None
    while True:
        start = (step * world_size + rank) * minibatch_size
        if start // num_records != epoch:
            epoch = start // num_records
            shuffled = torch.Generator().manual_seed(epoch)
            order = torch.randperm(num_records, generator=shuffled)
        chosen = order[start % num_records :][:minibatch_size]
        optimizer.zero_grad()
        zoo.loss(wrapped(images[chosen]), labels[chosen]).backward()
        optimizer.step()
        step += 1
        tell(member=rank, step=step, size=world_size, records=world_size * minibatch_size)
        if step % CHECKPOINT_STEPS == 0:
            save(step)
