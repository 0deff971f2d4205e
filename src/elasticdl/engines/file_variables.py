"""File variables: detects top-level values of a user's files that change during training.

    rng = np.random.default_rng(0)   an error once this random generator is used in training
    seen = 0                         a warning if this counter changes repeatedly

The files are those of the zoo, and others that they import; packages in site-packages are not
searched.

Iterators are treated like random generators. Both are also found within an object or a default
argument.

Checkpoints do not contain such values, and each worker has its own copy, so a resumed run continues
from the initial value in the file. A random generator that is used only while the file is imported
or the model is created is harmless, because it draws the same numbers each time. So is a value that
changes once and then stays the same, like a cache.

Callers: `training_context.py` sets the folder, `loop.py` checks.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import inspect
import itertools
import logging
import random
import sys
import types
import warnings
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.errors import DefinitionError
from elasticdl.tracebacks import is_of_the_user
from elasticdl.training.generators import is_of_process
from elasticdl.training.raw_memory import raw_memory

_log = logging.getLogger("elasticdl")

# Checks must not slow down training, so large values are examined only in part.
_DEPTH = 4
_MAX_ITEMS = 200
_MAX_BYTES = 2**20
_LOADERS = "torch.utils.data."
_PLAIN = bool, int, float, complex, str, bytes, np.generic, itertools.count


@dataclass
class _Value:
    """A top-level variable, and a summary of its value at the last check, to detect a change."""

    file: str
    name: str
    seen: Any
    has_changed: bool = False


class FileVariables:
    """Detector of changes of top-level variables in the user's files, which checkpoints lack.

    Args:
        folder: Folder with the user's files. None if there are none; then nothing is checked.

    Attributes:
        kept: Objects that are not checked at all, because checkpoints contain their attributes: the
            callbacks.
        stored: Objects that are checked only for random generators and iterators, because
            checkpoints contain their other values. PyTorch modules among them, and those in
            attributes of `kept`, may be parts of a value that is checked.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self.kept: Sequence[Any] = ()
        self.stored: Sequence[Any] = ()
        self._generators: list[tuple[str, str, Any, Any]] | None = None
        self._values: dict[tuple[str, str], _Value] = {}
        self._warned: set[tuple[str, str]] = set()
        self._num_checks = 0

    def check(self) -> None:
        """Raise an error if a random generator or an iterator was used since the first call.

        Also warn about other values that change during training.

        Random generators and iterators are checked at each call, other values at increasing
        intervals (after 1, 2, 4, 8, ... calls). A value that has changed at two checks in a row
        causes a warning.

        Raises:
            DefinitionError: A random generator has drawn numbers, or an iterator has advanced.
        """
        if self._folder is None:
            return
        if self._generators is None:
            self._generators = [
                (file, name, each, _progress_of(each))
                for file, variable, value, module in self._variables()
                for name, each in self._advancing(variable, value, module)
            ]
        for file, name, value, before in self._generators:
            if _progress_of(value) == before:
                continue
            if isinstance(value, Iterator):
                raise DefinitionError(
                    f"{file}: the iterator {name!r} at the top level of the file has advanced "
                    "during training. Its position is not in checkpoints and each worker has its "
                    "own, so a resumed training and workers would get other values. To decide by "
                    "chance, draw from the functions of np.random, random, tf or torch, which are "
                    "seeded for each batch and step; to alternate, keep a counter in a buffer of "
                    "the model or in an attribute of a callback."
                )
            raise DefinitionError(
                f"{file}: the generator {name!r} at the top level of the file has drawn random "
                "numbers during training. Its state is not in checkpoints, so a resumed "
                "training would draw different numbers. Draw from the functions of np.random, "
                "random, tf or torch, which are seeded for each batch and step, or create a "
                "generator from them where you draw: rng = "
                "np.random.default_rng(np.random.randint(2**31)). Create the generator of a "
                "DataLoader in the function that returns the loader."
            )
        is_power_of_two = self._num_checks & (self._num_checks - 1) == 0
        self._num_checks += 1
        if is_power_of_two:
            self._compare_values()

    def _advancing(self, name: str, value: Any, module: str) -> Iterator[tuple[str, Any]]:
        """Yield (name, object) for each random generator and iterator within a variable.

        Args:
            name: Name of the variable, from which the names of the objects in it are formed.
            value: Its value.
            module: Name of the user's module. Objects of classes of other modules are not searched.
        """
        found = [(name, value, _DEPTH)]
        seen: set[int] = set()
        while found:
            where, each, depth = found.pop(0)
            if id(each) in seen or any(each is kept for kept in self.kept):
                continue
            seen.add(id(each))
            if _progress_of(each) is not None:
                yield where, each
            elif depth and not isinstance(each, _PLAIN):
                some = itertools.islice(_named_within(where, each, module), _MAX_ITEMS)
                found += [(inner, value, depth - 1) for inner, value in some]

    def _compare_values(self) -> None:
        of_callbacks = [each for one in self.kept for each in getattr(one, "__dict__", {}).values()]
        stored = {
            id(tensor) for each in (*self.stored, *of_callbacks) for tensor in _tensors_of(each)
        }
        for file, name, value, module in self._variables():
            key = file, name
            if key in self._warned or _progress_of(value) is not None:
                continue
            if any(value is each for each in (*self.kept, *self.stored)):
                continue
            seen = _summary(value, module, _DEPTH, stored)
            before = self._values.get(key)
            if before is None:
                self._values[key] = _Value(file, name, seen)
                continue
            has_changed = seen != before.seen
            if has_changed and before.has_changed:
                self._warned.add(key)
                _log.warning(
                    "%s: %s at the top level of the file changes during training. It is not in "
                    "checkpoints and each worker has its own copy, so a resumed training continues "
                    "from the initial value in the file. Batches are read before the training and "
                    "in advance, so a function of the input sees other values than in a plain "
                    "script. Keep such state in a weight or buffer of the model, or in an "
                    "attribute of a callback. If each step sets the whole value before it reads "
                    "any of it, as for outputs of layers, nothing has to be done.",
                    file,
                    name,
                )
            before.seen, before.has_changed = seen, has_changed

    def _variables(self) -> Iterator[tuple[str, str, Any, str]]:
        """Yield (file, variable name, value, module name) of each top-level variable."""
        if self._folder is None:
            return
        # A framework has thousands of modules; comparing strings excludes most of them cheaply.
        within = f"{self._folder}/"
        found: dict[str, Any] = {}
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if not isinstance(file, str) or not file.startswith(within):
                continue
            # The module's name must match its path: packages installed below the folder are not the
            # user's own files.
            path = self._folder.joinpath(*name.split("."))
            if file in (f"{path}.py", f"{path}/__init__.py"):
                found[name] = module
        # What is added to the list in the loop is searched, too.
        names = list(found)
        for name in names:
            module = found[name]
            for variable, value in list(vars(module).items()):
                if not variable.startswith("__"):
                    yield str(module.__file__), variable, value, name
                    other = _users_module(value)
                    if other is not None and other.__name__ not in found:
                        found[other.__name__] = other
                        names.append(other.__name__)


def _users_module(value: Any) -> Any:
    """Return the user's module that a value is, or that defines the class or function; else None.

    A file of the user's may import files of other folders, which it adds to `sys.path`.
    """
    module = value
    if isinstance(value, (types.FunctionType, type)):
        module = sys.modules.get(value.__module__)
    # `getattr` would import a module that is loaded when it is used.
    file = vars(module).get("__file__") if isinstance(module, types.ModuleType) else None
    is_users = isinstance(file, str) and module.__name__ != "__main__" and is_of_the_user(file)
    return module if is_users else None


def _state_of(value: Any) -> Any:
    """Return a random generator's state, which changes when it is used; None for other values."""
    if is_of_process(value):
        return None
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state(legacy=False))
    # Compare by name, because frameworks must not be imported here.
    match type(value).__module__.partition(".")[0], type(value).__name__:
        case "torch", "Generator":
            return value.get_state().numpy().tobytes()
        case "tensorflow", "Generator":
            return value.state.numpy().tobytes()
    return None


def _progress_of(value: Any) -> Any:
    """Return the state of a random generator or of an iterator; None if the value is neither.

    Used to warn of variables that a call changed and a resumed training would not restore. Files
    and `itertools.count()` are ignored, because such code usually gives the same results again.
    """
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        if frame is None:
            return "ended"
        return frame.f_lasti, [_progress_within(each) for each in frame.f_locals.values()]
    if isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools"):
        return None if isinstance(value, itertools.count) else _progress_within(value)
    return _state_of(value)


def _progress_within(value: Any, depth: int = 3 * _DEPTH) -> Any:
    """Return an iterator's position, without advancing it; None if unknown.

    The position has any form that changes when the iterator advances.

    Args:
        value: An iterator, or a value from the tuple to which pickle reduces it
            (`object.__reduce__`).
        depth: Maximum depth of nested values to examine. A nested iterator adds three levels: its
            reduced form, the arguments in it, and an argument.
    """
    if isinstance(value, (range, *_PLAIN)):
        return repr(value)
    if (state := _state_of(value)) is not None or not depth:
        return state
    if isinstance(value, types.GeneratorType):
        return _progress_of(value)
    if isinstance(value, tuple):
        return [_progress_within(each, depth - 1) for each in value]
    if not isinstance(value, Iterator):
        return None
    try:
        # Python 3.12 deprecates `__reduce__` of itertools; without it the position is unknown.
        with warnings.catch_warnings(action="ignore"):
            return _progress_within(value.__reduce__(), depth - 1)
    except TypeError:
        return None


def _named_within(name: str, value: Any, module: str) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for each value within a container, function, class or object.

    The names are for messages, such as `config['rng']` or `Sampler.rng`.

    Args:
        name: Name of the container.
        value: The container, function, class or object.
        module: Name of the user's module. Classes and objects of other modules are not searched,
            except PyTorch's loaders and samplers, and of functions only the default arguments.
    """
    if isinstance(value, Mapping):
        some = list(itertools.islice(value.items(), _MAX_ITEMS))
        yield from ((f"{name}[{key!r}]", each) for key, each in some)
    elif isinstance(value, types.FunctionType):
        defaults = value.__defaults__ or ()
        yield from ((f"{name}(...)", each) for each in [*defaults, *(_within(value, module) or ())])
    elif isinstance(value, type):
        for key, each in _within(value, module) or ():
            yield f"{name}.{key}", each
    elif isinstance(value, list | tuple | collections.deque):
        yield from ((f"{name}[{number}]", each) for number, each in enumerate(value))
    elif _within(value, module) is not None or type(value).__module__.startswith(_LOADERS):
        attributes = getattr(value, "__dict__", {})
        yield from ((f"{name}.{key}", each) for key, each in list(attributes.items()))


def _summary(  # noqa: PLR0911 - one for each kind
    value: Any, module: str, depth: int, stored: Collection[int] = frozenset()
) -> Any:
    """Return a summary of a value that compares unequal once the value has changed.

    The summary ignores the contents of values imported from other modules, and of objects whose
    state the framework or a checkpoint saves.

    Args:
        value: The value of a variable, or a value within one.
        module: The name of the user's module.
        depth: Maximum depth of nested values to examine.
        stored: The ids of tensors that checkpoints contain.
    """
    if value is None or isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, _checksum(value)
    if type(value).__module__ == "torch" and type(value).__name__ == "Tensor":
        return _summary_of_tensor(value)
    if (memory := raw_memory(value)) is not None:
        return len(memory), zlib.crc32(memory[:_MAX_BYTES])
    if tensors := _tensors_of(value):
        unstored = [each.data for each in tensors if id(each) not in stored]
        return [_summary(each, module, 0) for each in unstored[:_MAX_ITEMS]]
    inner = _within(value, module) if depth else None
    if inner is None:
        # `items()` creates its pairs each time, so their ids are no sign of a change.
        if isinstance(value, tuple):
            return [_summary(each, module, 0, stored) for each in value[:_MAX_ITEMS]]
        return id(value)
    try:
        some = list(itertools.islice(inner, _MAX_ITEMS))
        size = len(value) if isinstance(value, Collection) else 0
    except RuntimeError:
        # A thread that prepares batches changed the value at the same time.
        return None
    return size, [_summary(each, module, depth - 1, stored) for each in some]


def _summary_of_tensor(tensor: Any) -> Any:
    # Only the entries of a sparse tensor, which may be too large as a dense one.
    held = tensor.detach()
    if held.is_meta:
        return tuple(tensor.shape), str(tensor.dtype)
    if str(held.layout) != "torch.strided":
        held = (held.coalesce() if held.is_sparse else held).values()
    # Sampled here, because a large tensor may be on a GPU.
    every = max(1, held.numel() * held.element_size() // _MAX_BYTES)
    held = held.reshape(-1)[::every].cpu()
    if held.is_complex():
        held = sys.modules["torch"].view_as_real(held.resolve_conj())
    return tuple(tensor.shape), _checksum(held.float().numpy())


def _tensors_of(value: Any) -> list[Any]:
    """Return the parameters and buffers of a PyTorch module; empty for other values."""
    if all(each.__module__ != "torch.nn.modules.module" for each in type(value).__mro__):
        return []
    # A module may override `parameters`.
    with contextlib.suppress(Exception):
        tensors = [*value.parameters(), *value.buffers()]
        # A parameter of a lazy module has no values before its first batch.
        return [each for each in tensors if not type(each).__name__.startswith("Uninitialized")]
    return []


def _within(value: Any, module: str) -> Iterable[Any] | None:
    """Return the values inside a container, function, class or object; None for other values.

    Args:
        value: The value.
        module: Name of the user's module. The result is None for a function, a class or an object
            that another module defines, because its state is not the user's.
    """
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, list | tuple | set | frozenset | collections.deque):
        return value
    if isinstance(value, types.FunctionType) and value.__module__ == module:
        cells = [_content(cell) for cell in value.__closure__ or ()]
        return [value.__dict__, value.__defaults__, value.__kwdefaults__, *cells]
    if isinstance(value, type):
        return _of_class(value) if value.__module__ == module else None
    if isinstance(value, (types.SimpleNamespace, argparse.Namespace)):
        return vars(value).items()
    if type(value).__module__ == module and not _is_kept(value):
        return getattr(value, "__dict__", {}).items()
    return None


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # The closure's cell is empty.
        return None


def _of_class(class_: type) -> Iterable[Any]:
    return [
        (name, value)
        for name, value in vars(class_).items()
        if not name.startswith("__") and not inspect.isroutine(value)
    ]


def _is_kept(value: Any) -> bool:
    """Return whether checkpoints contain the state of a user's object, such as a Keras layer.

    Such an object need not be checked. A PyTorch module without parameters may be a loss, whose
    state is not saved.
    """
    kept = {"Callback", "Optimizer", "Layer", "Metric"}
    if any(base.__name__ in kept for base in type(value).__mro__):
        return True
    # An object may import something when an attribute is read, or have another `parameters`.
    with contextlib.suppress(Exception):
        # A PyTorch module without parameters may be a loss, whose state is not kept.
        return callable(value.parameters) and any(True for _ in value.parameters())
    return False


def _checksum(array: np.ndarray[Any, Any]) -> int:
    if array.dtype.hasobject:
        return len(array)
    flat = array.reshape(-1)
    # Sample values from the whole array.
    every = max(1, array.nbytes // _MAX_BYTES)
    return zlib.crc32(np.ascontiguousarray(flat[::every]).tobytes())
