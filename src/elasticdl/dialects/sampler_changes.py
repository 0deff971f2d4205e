"""Detects changes that user code makes to the samplers of a `DataLoader`.

    sampler.weights = harder(losses)        a callback: refused, because it would have no effect
    sampler.set_epoch(epoch)                accepted: the order is drawn after the same call
    sampler.set_epoch(epoch + 10)           refused

The order of an epoch is drawn from copies of the samplers (`sampler_orders.py`), which keep the
values from when the loader was created. ElasticDL never draws from the samplers themselves, so if a
value differs from the copy's, user code has changed it or has drawn from the sampler.

Callers: `torch_loaders.py`.
"""

from __future__ import annotations

import collections
import itertools
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.dialects.sampler_orders import is_generator, samplers_of, state_of
from elasticdl.training.generators import is_of_process

if TYPE_CHECKING:
    from elasticdl.dialects.sampler_orders import SamplerOrders

# Samplers that wrap others, and their containers, are seldom nested deeper.
_DEPTH = 12
_PLAIN = bool, int, float, complex, str, bytes, type(None), np.generic, range
_SEQUENCES = list, tuple, collections.deque


class SamplerChanges:
    """Finds the values in a loader's samplers that user code has changed.

    Nothing is found if the samplers cannot be copied or compared, or if the loader has a
    `set_epoch` method, which may change them.

    Args:
        loader: A DataLoader that has not been used yet.
        orders: Draws the orders of this loader; has copies of its samplers.
    """

    def __init__(self, loader: Any, orders: SamplerOrders) -> None:
        self._loader, self._orders = loader, orders
        self._is_known = orders.initial is not None and not callable(
            getattr(loader, "set_epoch", None)
        )
        # A class may leave values out of its copies.
        self._differing: set[str] = set()
        if self._is_known:
            try:
                self._differing = set(self._compared(orders.initial))
            except Exception:  # noqa: BLE001 - a user's class may raise anything
                self._is_known = False

    def find(self, epoch: int) -> str | None:
        """Return the name of a value that user code has changed; None if there is none.

        An example is "`weights` of the MySampler". A value that equals the one that
        `set_epoch(epoch)` sets does not count, because the order is drawn after the same call.

        Args:
            epoch: The epoch that begins.
        """
        if not self._is_known:
            return None
        changed = [
            name for name in self._compared(self._orders.initial) if name not in self._differing
        ]
        if changed:
            after = set(self._compared(self._orders.copies(epoch)))
            changed = [name for name in changed if name in after]
        return changed[0] if changed else None

    def _compared(self, before: Any) -> Iterator[str]:
        """Yield the name of each value that differs between the samplers and their copies.

        Args:
            before: The copies, in the order of `samplers_of`.
        """
        seen: set[int] = set()
        for (name, now), each in zip(samplers_of(self._loader).items(), before, strict=True):
            yield from _names(_named(name, self._loader), now, each, _DEPTH, seen)


def _names(name: str, now: Any, before: Any, depth: int, seen: set[int]) -> Iterator[str]:
    """Yield the name of a value that differs from its copy, or of each value in it that differs.

    Args:
        name: Name of the value.
        now: The value.
        before: Its copy.
        depth: How many levels of values within values to compare.
        seen: Ids of the objects compared so far, so that each is compared once; added to. Their
            owners keep the objects alive, so no id is used again.
    """
    if now is before or not depth:
        return
    if type(now) is not type(before) or not _is_same(now, before):
        yield name
        return
    if isinstance(now, _PLAIN) or id(now) in seen:
        return
    seen.add(id(now))
    for each in _within(name, now, before):
        yield from _names(*each, depth - 1, seen)


def _within(name: str, now: Any, before: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, value, its copy) for each item or attribute of a value.

    Args:
        name: Name of the value. Its items are yielded under this name, attributes under their own.
        now: The value.
        before: Its copy, of the same type and with equal numbers and strings.
    """
    if isinstance(now, dict):
        yield from ((name, now[key], before[key]) for key in _plain_in(now))
    elif isinstance(now, _SEQUENCES):
        # Plain items are compared already; there may be millions.
        pairs = zip(now, before, strict=True)
        yield from ((name, *pair) for pair in pairs if not isinstance(pair[0], _PLAIN))
    elif isinstance(now, MethodType):
        yield name, now.__self__, before.__self__
    elif not _is_data(now) and not isinstance(now, (type, ModuleType, FunctionType)):
        missing = object()
        values, earlier = (getattr(each, "__dict__", {}) for each in (now, before))
        for key in [*values, *(earlier.keys() - values.keys())]:
            yield _named(key, now), values.get(key, missing), earlier.get(key, missing)


def _named(attribute: str, owner: Any) -> str:
    return f"`{attribute}` of the {type(owner).__name__}"


def _is_same(now: Any, before: Any) -> bool:
    """Return whether two values of the same type are equal, ignoring objects within them.

    Of the items of containers, only numbers, strings and the like are compared.
    """
    if is_generator(now):
        # Other code draws from the global generators; they are seeded for each epoch.
        return is_of_process(now) or bool(state_of(now) == state_of(before))
    if isinstance(now, (dict, set, frozenset)):
        return len(now) == len(before) and {*_plain_in(now)} == {*_plain_in(before)}
    if isinstance(now, _SEQUENCES):
        return len(now) == len(before) and _plain_in(now) == _plain_in(before)
    if isinstance(now, MethodType):
        return now.__func__ is before.__func__
    if isinstance(now, (type, ModuleType, FunctionType)):
        # A copy would refer to the same object, so a different one is a change.
        return False
    return bool(_contents(now) == _contents(before))


def _contents(value: Any) -> Any:
    """Return a comparable form of a number, a string, an array or a tensor; None for others."""
    torch = sys.modules["torch"]
    if isinstance(value, (*_PLAIN, itertools.count)):
        # A NaN does not equal itself.
        return repr(value)
    if isinstance(value, torch.Tensor):
        # `numpy()` has no bfloat16, and no tensor with another layout can be flat.
        is_flat = value.layout is torch.strided and not value.is_quantized
        flat = value.detach().cpu().reshape(-1).contiguous() if is_flat else None
        bytes_ = None if flat is None else flat.view(torch.uint8).numpy().tobytes()
        return value.dtype, value.shape, bytes_
    if isinstance(value, np.ndarray):
        has_objects = value.dtype.hasobject
        return value.dtype, value.shape, _plain_in(value.flat) if has_objects else value.tobytes()
    return None


def _plain_in(values: Iterable[Any]) -> list[Any]:
    return [each for each in values if isinstance(each, _PLAIN)]


def _is_data(value: Any) -> bool:
    """Return whether a value looks like a dataset (supports indexing), and may therefore change.

    Changes of a dataset in a sampler are ignored: it may just have filled a cache.
    """
    return not isinstance(value, (dict, *_SEQUENCES)) and hasattr(value, "__getitem__")
