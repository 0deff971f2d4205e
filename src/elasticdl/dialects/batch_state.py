"""Detects a dataset or `collate_fn` with state that changes a batch each time it is read.

No checkpoint contains such state, each worker has its own copy, and reading an example batch before
training would change it. So the first batches of a loader are read several times, with the same
seeds:

    different batches                they depend on state: an error that names the state
    own random generator was used    an error, unless it is seeded again for each item
    same batches, different state    a counter or a log: a warning that names the state
    same batches, same state         no state, or a cache that is filled by now

Errors and warnings name the object that changed. It is searched for in attributes, items, closures,
default arguments and variables of the file.

Callers: `torch_loaders.py`.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import itertools
import logging
import sys
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.dialects.sampler_orders import (
    GlobalGenerators,
    is_generator,
    state_of,
)
from elasticdl.errors import DefinitionError
from elasticdl.training.generators import is_of_process

_log = logging.getLogger("elasticdl")

# A search must not take long, so large values are examined only in part.
_MAX_VALUES = 3000
# A list of transforms is short; a long list is data.
_MAX_ITEMS = 64
_MAX_ELEMENTS = 2**16
# Readings of a loader with a counter, to find out whether its batches depend on it.
_MORE_READINGS = 32
_DEPTH_OF_A_BATCH = 6
_PLAIN = bool, int, float, complex, str, bytes, type(None), np.generic, itertools.count
_BOUND = types.MethodType, types.BuiltinMethodType, types.MethodWrapperType
_CONTAINERS = (
    dict, collections.OrderedDict, collections.defaultdict, collections.Counter, list, set,
    collections.deque,
)  # fmt: skip


class BatchState:
    """Checks that a loader's batches do not depend on state of its dataset or `collate_fn`.

    Such state, for example a counter that decides how a batch is made, is not in checkpoints, so a
    resumed training would get other batches.

    Args:
        loader: A DataLoader.
        name: The user's name for it, for messages.
    """

    def __init__(self, loader: Any, name: str) -> None:
        self._roots = {"collate_fn": loader.collate_fn, "dataset": loader.dataset}
        self._name = name
        self._is_checked = False
        self._changing: list[str] = []
        self._watched: Sequence[_Value] = ()
        self._states: list[Any] = []

    def check(self, read: Callable[[int], Sequence[Any]]) -> None:
        """Check that the first batches are the same when they are read repeatedly.

        Only the first call checks. It logs a warning if state changes without affecting the
        batches.

        Args:
            read: Function (number of batches) -> that many batches, read from the start of the
                epoch.

        Raises:
            DefinitionError: The batches depend on state.
        """
        if self._is_checked:
            return
        self._is_checked = True
        before = self._snapshot()
        try:
            self._try(read, before)
        except DefinitionError:
            raise
        except Exception:  # noqa: BLE001 - it is reported where the batch is read for training
            return

    def check_generators(self) -> None:
        """Check that no random generator that belongs to the dataset has been drawn from.

        Call it after each batch, because a dataset may draw for a few items only. Generators that
        are seeded for each item are allowed.

        Raises:
            DefinitionError: Such a generator has been drawn from since `check`.
        """
        for value, state in zip(self._watched, self._states, strict=True):
            if state_of(value.value) != state:
                raise self._draws(value.name)

    @contextlib.contextmanager
    def preserved(self) -> Iterator[None]:
        """Context manager: on exit, restores the counters of the dataset and `collate_fn`.

        Read an example batch in the block; training then begins with the original counters.
        Counters are the values that, according to `check`, change without affecting the batches.
        """
        before = self._snapshot()
        try:
            yield
        finally:
            before.restore(self._changing)

    def _try(self, read: Callable[[int], Sequence[Any]], before: _Snapshot) -> None:
        from elasticdl.training.torch.untracked_state import (  # noqa: PLC0415 - imports torch
            digest,
        )

        drawing = GlobalGenerators()

        def reading(count: int) -> list[str]:
            with drawing.repeated():
                return [digest(batch, _DEPTH_OF_A_BATCH) for batch in read(count)]

        # The batches a, b, a, a, b: state with a period of 2 or 3 batches changes one of the a.
        results = reading(2)
        first = self._snapshot()
        readings = [reading(1), reading(2)]
        second = self._snapshot()
        is_same = _all_begin(readings, results)
        self._changing = first.changed(second)
        generators = {value.name for value in before.values if is_generator(value.value)}
        if drawn := next((name for name in self._changing if name in generators), None):
            raise self._draws(drawn)
        if is_same and self._changing:
            readings = [reading(1 + number % 2) for number in range(_MORE_READINGS)]
            is_same = _all_begin(readings, results)
            before.restore(self._changing)
        if not is_same:
            self._report(before, second)
        elif self._changing:
            _log.warning(
                "%s: `%s` changes each time the same batch is read. It is not in checkpoints and "
                "each worker has its own copy, so a batch must not depend on it.",
                self._name,
                self._changing[0],
            )
        # A generator that draws in the same way each time is seeded for each item.
        seeded = before.changed(second)
        self._watched = [
            value
            for value in second.values
            if is_generator(value.value) and value.name not in seeded
        ]
        self._states = [state_of(value.value) for value in self._watched]

    def _report(self, before: _Snapshot, after: _Snapshot) -> None:
        """Report that a batch differed when it was read several times.

        Raises an error if a value that has changed explains the difference; otherwise only warns.

        Args:
            before: State before the first reading.
            after: State after several readings.

        Raises:
            DefinitionError: State of the dataset or of `collate_fn` explains the difference.
        """
        iterators = [value.name for value in after.values if _is_iterator(value.value)]
        if causes := [*self._changing, *iterators, *before.changed(after)]:
            raise DefinitionError(
                f"{self._name}: its batches depend on state that changes from call to call, "
                f"`{causes[0]}`. That state is not in checkpoints and each worker has its own "
                "copy, so a resumed training and workers would differ. Keep no state "
                "between batches: to decide by chance, draw from the global functions of torch, "
                "numpy.random or random, which are seeded for each batch."
            )
        _log.warning(
            "%s: a batch differs each time it is read, even with the same seeds. So a resumed "
            "training and workers get different batches. Draw from the global functions of torch, "
            "numpy.random or random, which are seeded for each batch.",
            self._name,
        )

    def _draws(self, generator: str) -> DefinitionError:
        return DefinitionError(
            f"{self._name} draws from a generator of its own, `{generator}`. The numbers would "
            "depend on earlier batches, which differ between workers and after a resume. Draw from "
            "the global functions of torch, numpy.random or random, which are seeded for each "
            "batch."
        )

    def _snapshot(self) -> _Snapshot:
        return _Snapshot(_reachable(self._roots))


@dataclass(frozen=True, eq=False)
class _Value:
    """A value that the code of a dataset or `collate_fn` can reach: an attribute, an item, ...

    Attributes:
        name: Name for messages: `dataset.items[0]`.
        value: The value.
        put: Function (value) that sets the attribute or item to another value; None if that is not
            possible.
    """

    name: str
    value: Any
    put: Callable[[Any], object] | None


class _Snapshot:
    """Snapshot of all values that a loader can reach, to find and undo later changes.

    Args:
        values: The values, as `_reachable` yields them. They are kept alive, so that Python does
            not reuse their ids.
    """

    def __init__(self, values: Iterator[_Value]) -> None:
        self.values = list(values)
        self._states = {each.name: _token(each.value) for each in self.values}
        self._contents = {each.name: _content(each.value) for each in self.values}

    def changed(self, later: _Snapshot) -> list[str]:
        """Return the names of the values that differ in a later snapshot, or are new in it."""
        missing = object()
        return [
            name
            for name, state in later._states.items()
            if state is not None and self._states.get(name, missing) != state
        ]

    def restore(self, names: Sequence[str]) -> None:
        """Restore the named values to this snapshot, where that is possible."""
        for each in self.values:
            if each.name in names:
                # A user's class may forbid to set attributes.
                with contextlib.suppress(Exception):
                    self._restore(each, self._contents[each.name])

    def _restore(self, each: _Value, content: Any) -> None:
        if each.put is not None:
            each.put(each.value)
        if isinstance(each.value, np.ndarray) and content is not None:
            each.value[...] = content
        elif content is not None and not isinstance(content, _CONTAINERS):
            each.value.detach().copy_(content)
        elif content is not None:
            each.value.clear()
            is_list = isinstance(content, (list, collections.deque))
            (each.value.extend if is_list else each.value.update)(content)


def _all_begin(readings: Sequence[Sequence[str]], results: Sequence[str]) -> bool:
    """Return whether all readings of the first batches of an epoch gave the same batches.

    Readings have different lengths, so each is compared with the beginning of the longest one.

    Args:
        readings: For each reading, the digests of its batches, from the first batch on.
        results: Digests of the batches of the longest reading.
    """
    return all(list(each) == list(results[: len(each)]) for each in readings)


def _token(value: Any) -> Any:
    """Return what is compared to find out whether a value has changed, such as an array's hash.

    For a list, a dict or a set this is only the length, because the items are compared separately.
    None for values of other types.
    """
    if isinstance(value, _PLAIN):
        return repr(value)
    if is_generator(value):
        return state_of(value)
    if (array := _array(value)) is not None:
        some = np.ascontiguousarray(array.flat[:_MAX_ELEMENTS])
        return (
            array.shape,
            array.dtype.str,
            0 if some.dtype.hasobject else zlib.crc32(some.tobytes()),
        )
    if isinstance(value, (dict, list, set, collections.deque)):
        return len(value)
    return None


def _content(value: Any) -> Any:
    """Return a copy of a list, an array or the like, to undo later in-place changes.

    Returns None for large values and for those of other types.
    """
    if type(value) in _CONTAINERS and len(value) <= _MAX_ITEMS:
        return value.copy()
    if (array := _array(value)) is not None and array.size <= _MAX_ELEMENTS:
        return value.copy() if isinstance(value, np.ndarray) else value.detach().clone()
    return None


def _array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return an array, or a CPU tensor converted to one; None for other values."""
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, sys.modules["torch"].Tensor) or value.device.type != "cpu":
        return None
    try:
        array = value.detach().numpy()
    except (TypeError, RuntimeError):  # It is sparse, quantized or in bfloat16.
        return None
    return array if isinstance(array, np.ndarray) else None


def _is_iterator(value: Any) -> bool:
    """Return whether a value is an iterator, whose position changes when a batch reads from it.

    Open files are not counted.
    """
    return isinstance(value, Iterator) and not isinstance(value, io.IOBase)


def _reachable(roots: Mapping[str, Any]) -> Iterator[_Value]:
    """Yield the values that the code of a dataset or `collate_fn` can reach, nearest first.

    Follows items, attributes, closures and global variables, up to a maximum number of values.

    Args:
        roots: Name for messages -> the dataset or `collate_fn`.
    """
    queue = collections.deque(_Value(name, value, None) for name, value in roots.items())
    seen: set[int] = set()
    names: set[str] = set()
    while queue and len(names) < _MAX_VALUES:
        each = queue.popleft()
        is_plain = isinstance(each.value, _PLAIN)
        if each.name in names or id(each.value) in seen or is_of_process(each.value):
            continue
        names.add(each.name)
        if not is_plain:
            seen.add(id(each.value))
        yield each
        if not is_plain and not is_generator(each.value):
            queue.extend(itertools.islice(_within(each.name, each.value), _MAX_ITEMS))


def _within(name: str, value: Any) -> Iterator[_Value]:
    """Yield the items, attributes, closure and global variables of a value, one level deep.

    Args:
        name: Name of the value; the yielded names begin with it.
        value: The value.
    """
    if isinstance(value, dict):
        for key, each in list(itertools.islice(value.items(), _MAX_ITEMS)):
            yield _Value(f"{name}[{key!r}]", each, functools.partial(value.__setitem__, key))
    elif isinstance(value, (list, tuple, collections.deque)):
        for number, each in enumerate(itertools.islice(value, _MAX_ITEMS)):
            put = None if isinstance(value, tuple) else functools.partial(value.__setitem__, number)
            yield _Value(f"{name}[{number}]", each, put)
    elif isinstance(value, types.FunctionType):
        yield from _of_function(name, value)
    elif isinstance(value, _BOUND):
        yield _Value(f"{name}.__self__", value.__self__, None)
        yield _Value(f"{name}.__func__", getattr(value, "__func__", None), None)
    elif isinstance(value, functools.partial):
        yield _Value(f"{name}.func", value.func, None)
        yield _Value(f"{name}.args", value.args, None)
        yield _Value(f"{name}.keywords", value.keywords, None)
    elif isinstance(value, type):
        yield from _of_class(value)
    elif not _is_of_python(type(value).__module__):
        yield from _of_object(name, value)


def _of_function(name: str, function: types.FunctionType) -> Iterator[_Value]:
    from elasticdl.training.torch.untracked_state import (  # noqa: PLC0415 - imports torch
        names_read_by,
    )

    cells = function.__closure__ or ()
    for variable, cell in zip(function.__code__.co_freevars, cells, strict=True):
        with contextlib.suppress(ValueError):  # It is empty.
            put = functools.partial(setattr, cell, "cell_contents")
            yield _Value(variable, cell.cell_contents, put)
    if _is_users(function.__module__):
        variables = function.__globals__
        for variable in sorted(names_read_by(function.__code__) & variables.keys()):
            put = functools.partial(variables.__setitem__, variable)
            yield _Value(variable, variables[variable], put)
    yield _Value(f"the default arguments of {name}", function.__defaults__, None)
    yield _Value(f"the keyword defaults of {name}", function.__kwdefaults__, None)
    for key, each in vars(function).items():
        yield _Value(f"{name}.{key}", each, functools.partial(setattr, function, key))


def _of_class(class_: type) -> Iterator[_Value]:
    for key, each in list(vars(class_).items()):
        code = getattr(each, "fget", None) or getattr(each, "__func__", each)
        if isinstance(code, types.FunctionType):
            yield _Value(f"{class_.__name__}.{key}", code, None)
        elif not key.startswith("__"):
            put = functools.partial(setattr, class_, key)
            yield _Value(f"{class_.__name__}.{key}", each, put)


def _of_object(name: str, value: Any) -> Iterator[_Value]:
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            with contextlib.suppress(AttributeError):  # It has no value.
                each = object.__getattribute__(value, slot)
                yield _Value(f"{name}.{slot}", each, functools.partial(setattr, value, slot))
    attributes: Any = getattr(value, "__dict__", None)
    for key, each in list(attributes.items()) if isinstance(attributes, dict) else ():
        yield _Value(f"{name}.{key}", each, functools.partial(attributes.__setitem__, key))
    for kind in type(value).__mro__:
        if _is_users(kind.__module__):
            yield _Value(kind.__name__, kind, None)


def _is_of_python(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


@functools.cache
def _is_users(module: str) -> bool:
    """Return whether a module is the user's own code, not Python's or an installed package."""
    if module == "__main__":
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return not _is_of_python(module) and not {"site-packages", "dist-packages"} & set(
        Path(file).parts
    )
