"""Values at the top level of a user's files that change during a training.

    rng = np.random.default_rng(0)          a generator that draws: refused
    seen = 0                                a counter, an average, a list: warned of, once

No checkpoint holds such a value, and each worker has one of its own, so a training that is resumed
continues from the value that the file starts with. A generator that draws only while the file is
imported or the model is made is harmless: it draws the same each time. So is a value that changes
once and then stays, as a cache does.

Callers: `material.py` finds the folder, `loop.py` checks.
"""

from __future__ import annotations

import collections
import inspect
import itertools
import logging
import random
import sys
import types
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.errors import DefinitionError

_log = logging.getLogger("elasticdl")

# Looking must cost a training nothing: what is large is looked at in part.
_DEPTH = 4
_MOST_ITEMS = 200
_MOST_BYTES = 2**20
_PLAIN = bool, int, float, complex, str, bytes, np.generic, itertools.count


@dataclass
class _Value:
    """A variable of a file, and what it looked like when it was looked at last."""

    file: str
    name: str
    seen: Any
    has_changed: bool = False


class FileVariables:
    """The variables of a zoo's modules.

    Args:
        folder: Where their files are; None if there are none.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._generators: list[tuple[str, str, Any, Any]] | None = None
        self._values: dict[tuple[str, str], _Value] = {}
        self._warned: set[tuple[str, str]] = set()
        self._num_checks = 0

    def check(self) -> None:
        """Compare the variables with what they were: at the first call, and where they were seen.

        Generators are compared at each call; other values at the calls 1, 2, 4, 8 and so on. One
        that has changed between two such calls, and again before the next, is warned of.

        Raises:
            DefinitionError: A generator has drawn.
        """
        if self._folder is None:
            return
        if self._generators is None:
            self._generators = [
                (file, name, value, state)
                for file, name, value, _ in self._variables()
                if (state := _state_of(value)) is not None
            ]
        for file, name, value, before in self._generators:
            if _state_of(value) != before:
                raise DefinitionError(
                    f"{file}: the generator {name!r} at the top level of the file has drawn random "
                    "numbers in the training. No checkpoint holds how far it is, so a resumed "
                    "training would draw others. Draw from the functions of np.random, random, tf "
                    "or torch, which are seeded for each batch and step, or make a generator from "
                    "them where you draw: rng = np.random.default_rng(np.random.randint(2**31))."
                )
        is_power_of_two = self._num_checks & (self._num_checks - 1) == 0
        self._num_checks += 1
        if is_power_of_two:
            self._compare_values()

    def _compare_values(self) -> None:
        for file, name, value, module in self._variables():
            key = file, name
            if key in self._warned or _state_of(value) is not None:
                continue
            seen = _look(value, module, _DEPTH)
            before = self._values.get(key)
            if before is None:
                self._values[key] = _Value(file, name, seen)
                continue
            has_changed = seen != before.seen
            if has_changed and before.has_changed:
                self._warned.add(key)
                _log.warning(
                    "%s: %s at the top level of the file changes during the training. No "
                    "checkpoint holds it and each worker has one of its own, so a resumed training "
                    "continues from the value that the file starts with. What the model has to "
                    "remember belongs in a weight or a buffer of it, or in an attribute of a "
                    "callback.",
                    file,
                    name,
                )
            before.seen, before.has_changed = seen, has_changed

    def _variables(self) -> Iterator[tuple[str, str, Any, str]]:
        """Yield file, name, value and the module's name."""
        if self._folder is None:
            return
        # A framework has thousands of modules: a comparison of text tells most of them apart.
        within = f"{self._folder}/"
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if not isinstance(file, str) or not file.startswith(within):
                continue
            # The name must be the path: what is installed below the folder is not the user's.
            path = self._folder.joinpath(*name.split("."))
            if file in (f"{path}.py", f"{path}/__init__.py"):
                for variable, value in list(vars(module).items()):
                    if not variable.startswith("__"):
                        yield str(module.__file__), variable, value, name


def _state_of(value: Any) -> Any:
    """Return what changes when a generator draws; None if it is no generator."""
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state(legacy=False))
    # Frameworks are not imported here.
    match type(value).__module__.partition(".")[0], type(value).__name__:
        case "torch", "Generator":
            return value.get_state().numpy().tobytes()
        case "tensorflow", "Generator":
            return value.state.numpy().tobytes()
    return None


def _look(value: Any, module: str, depth: int) -> Any:
    """Return something that compares unequal once a value has changed.

    What the framework or a checkpoint keeps is left out, and so is what the file has imported.

    Args:
        value: Of a variable, or within one.
        module: The name of the user's module.
        depth: How deep to look into it.
    """
    if value is None or isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, _checksum(value)
    if type(value).__module__ == "torch" and type(value).__name__ == "Tensor":
        return tuple(value.shape), _checksum(value.detach().cpu().float().numpy())
    inner = _within(value, module) if depth else None
    if inner is None:
        return id(value)
    try:
        some = list(itertools.islice(inner, _MOST_ITEMS))
        size = len(value) if isinstance(value, Collection) else 0
    except RuntimeError:
        # Another thread makes batches and has just changed it.
        return None
    return size, [_look(each, module, depth - 1) for each in some]


def _within(value: Any, module: str) -> Iterable[Any] | None:
    """Return what a value of the user's is made of; None if it is made elsewhere."""
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, list | tuple | set | frozenset | collections.deque):
        return value
    if isinstance(value, types.FunctionType) and value.__module__ == module:
        cells = [_content(cell) for cell in value.__closure__ or ()]
        return [value.__dict__, value.__defaults__, value.__kwdefaults__, *cells]
    if isinstance(value, type):
        return _of_class(value) if value.__module__ == module else None
    if type(value).__module__ == module and not _is_kept(value):
        return getattr(value, "__dict__", {}).items()
    return None


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # It is empty.
        return None


def _of_class(class_: type) -> Iterable[Any]:
    return [
        (name, value)
        for name, value in vars(class_).items()
        if not name.startswith("__") and not inspect.isroutine(value)
    ]


def _is_kept(value: Any) -> bool:
    """Return whether a checkpoint or the framework keeps what an object of the user's knows."""
    kept = {"Callback", "Optimizer", "Layer", "Metric"}
    if any(base.__name__ in kept for base in type(value).__mro__):
        return True
    parameters = getattr(value, "parameters", None)
    # A module of PyTorch without parameters may be a loss, of which nothing is kept.
    return callable(parameters) and any(True for _ in parameters())


def _checksum(array: np.ndarray[Any, Any]) -> int:
    if array.dtype.hasobject:
        return len(array)
    flat = array.reshape(-1)
    # Spread over all of it.
    every = max(1, array.nbytes // _MOST_BYTES)
    return zlib.crc32(np.ascontiguousarray(flat[::every]).tobytes())
