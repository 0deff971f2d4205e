"""Draws the order of a PyTorch `DataLoader` in any epoch; every process gets the same order.

A sampler, or a sampler that it wraps, may have state that advances from epoch to epoch: a random
number generator of PyTorch, NumPy or Python, a counter, a list that it shuffles in place. So an
order is always drawn from a copy of the samplers in their initial state, which first draws the
orders of the earlier epochs. The order is the same, whichever epoch a process resumes from. Changes
that user code makes to the samplers themselves have no effect, so they are detected
(`sampler_changes.py`).

Callers: `torch_loaders.py`, `batch_state.py`; `loader_workers.py`, for `GlobalGenerators`.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

_OF_TORCH = "torch.utils.data.sampler"


class SamplerOrders:
    """Draws the order of the examples in each epoch of a `DataLoader`.

    A loader without its own generator draws from the global random number generators, which the
    caller seeds by (seed, epoch). The samplers' state carries over from one epoch to the next, as
    in a plain loop.

    Args:
        loader: A DataLoader over a map-style dataset.

    Attributes:
        generators: The random generators of the loader and of its samplers, at any depth.
        initial: Copies of the loader's (sampler, batch_sampler, generator), made when this object
            was created; do not modify them. None if they cannot be copied.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._parts = tuple(samplers_of(loader).values())
        # Datasets are not copied: they are large and not part of the samplers' state.
        memo: dict[int, Any] = {id(each): each for each in _datasets(loader.dataset)}
        try:
            self.initial: Any = copy.deepcopy(self._parts, memo)
        except Exception:  # noqa: BLE001 - a user's class may raise anything
            self.initial = None
        # deepcopy lists the copied objects there, to keep them alive.
        copied = memo.get(id(memo), [])
        if self.initial is None:
            copied = [loader.generator, *_attributes(loader.sampler), *_attributes(loader)]
        self.generators = [each for each in copied if is_generator(each)]
        self._has_state = bool(self.generators)

    def find_state(self) -> bool:
        """Determine whether samplers have state, and whether their orders can be repeated.

        Draws the first epoch several times. Call this once, before `of`: if the samplers have
        state, `of` also draws all earlier epochs.

        Returns:
            Whether orders can be repeated. False if a second draw, from new copies of the samplers
            and with the same seeds, gives another order.
        """
        sampler, batch_sampler, _ = self._parts
        samplers = (sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
        # PyTorch's samplers have no state except their generators.
        if all(type(each).__module__ == _OF_TORCH for each in samplers if each is not None):
            return True
        state = GlobalGenerators()
        parts = self._fresh()
        first = pickle.dumps(self._draw(parts, 0))
        state.restore()
        self._has_state = self._has_state or pickle.dumps(self._draw(parts, 0)) != first
        state.restore()
        repeated = pickle.dumps(self.of(0))
        state.restore()
        return repeated == first

    def of(self, epoch: int) -> list[Any]:
        """Return the dataset indexes of each batch of an epoch, in order.

        Without automatic batching (`batch_size=None`), each is a single index.

        Args:
            epoch: The epoch, from 0.
        """
        parts = self._fresh()
        order: list[Any] = []
        for number in range(0 if self._has_state else epoch, epoch + 1):
            order = self._draw(parts, number)
        return order

    def copies(self, epoch: int) -> Any:
        """Return new copies of the samplers in their initial state, after `set_epoch(epoch)`."""
        parts = self._fresh()
        _set_epoch_of_samplers(epoch, parts)
        return parts

    def _fresh(self) -> Any:
        if self.initial is None:
            return self._parts
        memo: dict[int, Any] = {id(each): each for each in _datasets(self._loader.dataset)}
        return copy.deepcopy(self.initial, memo)

    def _draw(self, parts: Any, epoch: int) -> list[Any]:
        sampler, batch_sampler, generator = parts
        _set_epoch_of_samplers(epoch, parts)
        set_epoch(epoch, self._loader)
        persists = self._loader.num_workers and self._loader.persistent_workers
        if generator is not None and not (persists and epoch):
            # A DataLoader draws a seed for its workers when it starts them.
            generator.get_state().new_empty(()).long().random_(generator=generator)
        return list(sampler if batch_sampler is None else batch_sampler)


def samplers_of(loader: Any) -> dict[str, Any]:
    """Return a loader's sampler, batch sampler and generator, by the names of its attributes.

    These objects determine the order of the examples; some may be None.
    """
    return {name: getattr(loader, name) for name in ("sampler", "batch_sampler", "generator")}


def _set_epoch_of_samplers(epoch: int, parts: Any) -> None:
    sampler, batch_sampler, _ = parts
    set_epoch(epoch, sampler, batch_sampler)
    inner = getattr(batch_sampler, "sampler", None)
    # As in Lightning. A batch sampler that has the method passes it on itself.
    if inner is not sampler and not hasattr(batch_sampler, "set_epoch"):
        set_epoch(epoch, inner)


def set_epoch(epoch: int, *owners: Any) -> None:
    """Call `set_epoch` of each owner, a sampler or dataset, that has this method."""
    for owner in owners:
        if callable(accept := getattr(owner, "set_epoch", None)):
            accept(epoch)


def is_generator(value: Any) -> bool:
    """Return whether a value is a random number generator of PyTorch, NumPy or Python."""
    if isinstance(value, (random.Random, np.random.Generator, np.random.RandomState)):
        return True
    return type(value).__name__ == "Generator" and hasattr(value, "get_state")


class GlobalGenerators:
    """A snapshot of the global random number generators of Python, NumPy and PyTorch."""

    def __init__(self) -> None:
        self._torch = sys.modules["torch"]
        self._states = (
            random.getstate(),
            np.random.get_state(),  # noqa: NPY002 - users call np.random.*
            self._torch.get_rng_state(),
        )

    def restore(self) -> None:
        """Restore the generators to the snapshot."""
        random.setstate(self._states[0])
        np.random.set_state(self._states[1])  # noqa: NPY002 - as above
        self._torch.set_rng_state(self._states[2])

    @contextlib.contextmanager
    def repeated(self) -> Iterator[None]:
        """Context manager: restores the snapshot on entry and on exit.

        So user code draws the same random numbers in each such block.
        """
        from elasticdl.data.torch_random import (  # noqa: PLC0415 - imports torch
            UseGenerator,
            generator_from,
        )

        self.restore()
        try:
            # The thread that prepares batches may have a separate PyTorch generator.
            with UseGenerator(generator_from(0)):
                yield
        finally:
            self.restore()


def state_of(generator: Any) -> Any:
    """Return the state of a random generator in a comparable form."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return repr(generator.get_state(legacy=False))
    return generator.get_state().numpy().tobytes()


def _datasets(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and the datasets within it, such as that of a `Subset`.

    Copies of samplers refer to these same datasets, which may be too large to copy.
    """
    yield dataset
    inner = getattr(dataset, "dataset", None)
    more = getattr(dataset, "datasets", None)
    for each in ([] if inner is None else [inner]) + list(more or ()):
        yield from _datasets(each)


def _attributes_by_name(value: Any) -> Mapping[str, Any]:
    if isinstance(value, type) or type(value).__module__ == "builtins":
        return {}
    return getattr(value, "__dict__", {})


def _attributes(value: Any) -> list[Any]:
    return list(_attributes_by_name(value).values())
