"""A plain PyTorch loop, to compare a trainer with: same initial weights, same batches."""

from __future__ import annotations

import copy

import numpy as np
import torch
from tests.training.torch.conftest import total_of, trainer_of

from elasticdl.data.batch import Batch, map_arrays
from elasticdl.training.torch.tensors import to_array


def tensor_of(array):
    return None if array is None else map_arrays(torch.from_numpy, array)


def plain_loop(definition, batches, loss=None, seed=0):
    """Train as a script does; returns the losses and the state dict.

    Args:
        definition: Of the model; its initial weights are those of a trainer.
        batches: To train on.
        loss: (outputs, labels, weights) -> scalar; None takes the definition's, averaged.
        seed: Of the initial weights.
    """
    model = copy.deepcopy(trainer_of(definition, batches[0], seed=seed).model)
    optimizer = definition.create_optimizer()(list(model.parameters()), model)
    model.train()
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        outputs = model(tensor_of(batch.features))
        labels = tensor_of(batch.labels)
        value = (
            loss(outputs, labels, tensor_of(batch.weights))
            if loss
            else definition.loss(outputs, labels).mean()
        )
        value.backward()
        optimizer.step()
        losses.append(value.item())
    # A tied parameter has two names and counts once.
    once = {id(t): name for name, t in reversed(model.state_dict(keep_vars=True).items())}
    state = model.state_dict(keep_vars=True)
    return losses, {name: to_array(state[name]) for name in once.values()}


def cut(batch, *rows):
    return [
        Batch(
            *(map_arrays(lambda a, r=r: a[r], part) for part in (batch.features, batch.labels)),
            len(range(batch.num_examples)[r]),
            None if batch.weights is None else batch.weights[r],
        )
        for r in rows
    ]


UNEVEN = (slice(0, 3), slice(3, 4), slice(4, None))


def workers_loop(definition, batches, rows=UNEVEN, seed=0):
    """Train on workers that share each batch unevenly; returns the state dict."""
    trainers = [trainer_of(definition, batches[0], seed=seed) for _ in rows]
    for batch in batches:
        parts = zip(trainers, cut(batch, *rows), strict=True)
        total = total_of(*(trainer.gradients(part)[0] for trainer, part in parts))
        for trainer in trainers:
            trainer.apply(total)
    return weights_of(trainers[0])


def in_process(definition, batches, seed=0):
    """Train in one process; returns the losses and the state dict."""
    trainer = trainer_of(definition, batches[0], seed=seed)
    losses = [float(trainer.train_steps([batch]).losses[0]) for batch in batches]
    return losses, weights_of(trainer)


def weights_of(trainer):
    state = trainer.state()
    return {
        path.removeprefix("model/"): a for path, a in state.items() if path.startswith("model/")
    }


def assert_close(one, other, atol=1e-6):
    assert one.keys() == other.keys()
    for name in one:
        mine, theirs = (np.asarray(a[name], np.float64) for a in (one, other))
        np.testing.assert_allclose(mine, theirs, atol=atol, rtol=1e-6, err_msg=name)


def assert_parity(definition, batches, loss=None, *, atol=1e-6):
    """Check that one process gives the bits of the plain loop, and workers its numbers."""
    losses, weights = plain_loop(definition, batches, loss)
    mine, here = in_process(definition, batches)
    np.testing.assert_array_equal(mine, np.float32(losses))
    for name in weights:
        np.testing.assert_array_equal(here[name], weights[name], err_msg=name)
    assert_close(workers_loop(definition, batches), weights, atol)
