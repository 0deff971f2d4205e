"""Converts the state of a PyTorch model's callbacks to JSON values and arrays, and back.

Extends `training/callback_state.py` with these values; of each is stored:

    a tensor                                          its values
    a weight or a module of the trained model         its name; also for a detached view of a
                                                      weight, as in model.state_dict()
    anything with state_dict() and load_state_dict()  its state: a copy of the model, a scheduler;
                                                      of modules also what their state_dict() omits:
                                                      numbers, text, tensors and buffers
    an object of a user's class                       its attributes
    functions, classes, files, loggers, handles       nothing: the user's code recreates them

Values of the last three kinds are not created from a checkpoint: the user's code must have created
them by the end of `on_train_begin`, and the stored state is restored into them. An object that a
callback creates later is therefore rejected, and so is a value of any other kind.

Callers: `hooks.py`.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import inspect
import io
import logging
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from elasticdl.errors import DefinitionError
from elasticdl.training.callback_state import (
    Arrays,
    CallbackValues,
    CannotKeepError,
    ContainerRestorer,
    arguments_of,
    name_of,
)
from elasticdl.training.clock_readings import ClockReadings
from elasticdl.training.torch.function_memory import OF_MODULES, has_state, is_of_library
from elasticdl.training.torch.tensors import available_device, to_array, to_tensor
from elasticdl.training.trainer import CALLBACKS

if TYPE_CHECKING:
    from elasticdl.training.torch.callbacks import Callbacks
    from elasticdl.training.trainer import State

_STATE_DICT, _CLOCKS, _DELETED = "$state_dict", "clocks", "$deleted"
# Writers have no state that training depends on.
_WRITERS = {"SummaryWriter", "writer"}
_LOCK = type(threading.Lock())
# Of the attributes of every module, only its mode is state.
_MODES = {"training"}
_PLAIN = bool, int, float, str
_INSTEAD = (
    "Keep numbers, strings, tensors, and lists and dicts of them; or implement state_dict() and "
    "load_state_dict(state)."
)
_INSTEAD_OF_A_METRIC = (
    "The state_dict() of a TorchMetrics object omits its states. Keep sums and counts as numbers "
    "or tensors instead (self.total += logs['loss']), or return the metric from eval_metrics_fn()."
)


class TorchValues(CallbackValues):
    """Converts attribute values of callbacks, PyTorch's too, to JSON and arrays, and back.

    Args:
        model: The trained model; its weights and modules are stored by name, not copied.
        optimizer: The optimizer of the model.
        callbacks: All callbacks. If one refers to another, it does not store the other's state.

    Attributes:
        made: Path of a stored value -> the object, or its type, that must exist before `decode`
            can restore the value. It contains values such as functions and objects of the user's
            classes, which only the user's code can create; `encode` fills it.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, callbacks: Sequence[Any]
    ) -> None:
        self._model, self._optimizer, self._callbacks = model, optimizer, list(callbacks)
        self.made: dict[str, Any] = {}
        self._within: list[int] = []
        self._is_compared = False
        self.begin()

    def begin(self) -> None:
        """Prepare to encode all values for a checkpoint: look up the weights, clear `made`."""
        self.made = {}
        self._by_storage: dict[int, list[tuple[str, torch.Tensor]]] = {}
        for name, weight in self._weights().items():
            self._by_storage.setdefault(_storage_of(weight), []).append((name, weight))

    def digest(self, value: Any) -> int | None:
        """Return a hash of a value; None if it cannot be stored, or is a function or a class."""
        self._is_compared = True
        try:
            return super().digest(value)
        finally:
            self._is_compared = False

    def encode_other(  # noqa: C901, PLR0911, PLR0912 - one line a type
        self, value: Any, path: str, arrays: Arrays
    ) -> Any:
        """Convert a tensor, a module or an object to JSON; see `CallbackValues.encode`."""
        if value is self._optimizer:
            return {"$optimizer": 0}
        number = next((n for n, each in enumerate(self._callbacks) if each is value), None)
        if number is not None:
            return {"$callback": number}
        if isinstance(value, torch.Tensor):
            return self._pack_tensor(value, path, arrays)
        if isinstance(value, nn.Module):
            found = next((n for n, m in self._model.named_modules() if m is value), None)
            if found is not None:
                return {"$module": found}
        if isinstance(value, torch.Generator):
            return {"$torch_generator": self.encode(value.get_state().numpy(), path, arrays)}
        if isinstance(value, (torch.Size, torch.dtype, torch.device)) or _is_code(value):
            if self._is_compared:
                raise CannotKeepError(name_of(value))
            self.made[path] = value
            return {"$code": 0}
        if _is_metric(value):
            raise CannotKeepError(name_of(value), _INSTEAD_OF_A_METRIC)
        if id(value) in self._within:
            raise CannotKeepError(f"{name_of(value)} that refers to itself")
        self._within.append(id(value))
        try:
            if has_state(value):
                self.made[path] = type(value)
                kept = self.encode(dict(value.state_dict()), path, arrays)
                omitted = _omitted(value) if isinstance(value, nn.Module) else {}
                return {"$state": [kept, self.encode(omitted, f"{path}/$omitted", arrays)]}
            if hasattr(value, "__dict__") and not is_of_library(type(value)):
                self.made[path] = type(value)
                kept = [
                    [name, self.encode(each, f"{path}/{name}", arrays)]
                    for name, each in vars(value).items()
                ]
                return {"$object": kept}
        finally:
            self._within.pop()
        return super().encode_other(value, path, arrays)

    def decode_other(  # noqa: C901, PLR0911 - one line a type
        self, tag: str, content: Any, current: Any, arrays: Mapping[str, np.ndarray[Any, Any]]
    ) -> Any:
        """Restore a tensor, a module or an object, which is changed in place.

        `CallbackValues.decode_other` describes the arguments.

        Raises:
            DefinitionError: The object to restore into does not exist.
        """
        match tag:
            case "$optimizer":
                return self._optimizer
            case "$callback":
                return self._callbacks[content]
            case "$module":
                return self._model.get_submodule(content)
            case "$weight":
                return self._weights()[content]
            case "$alias":
                return self._weights()[content].detach()
            case "$tensor":
                return self._unpack_tensor(content, current, arrays)
            case "$torch_generator":
                found = current if isinstance(current, torch.Generator) else torch.Generator()
                found.set_state(torch.from_numpy(self.decode(content, None, arrays)))
                return found
            case "$code":
                return current
            case "$state" if has_state(current):
                state, omitted = content
                current.load_state_dict(self.decode(state, None, arrays))
                before = _omitted(current) if isinstance(current, nn.Module) else {}
                _set_omitted(current, self.decode(omitted, before, arrays))
            case "$object" if hasattr(current, "__dict__"):
                for name, each in content:
                    vars(current)[name] = self.decode(each, vars(current).get(name), arrays)
            case _:
                raise DefinitionError(
                    "A callback had an object in an attribute when the checkpoint was written, "
                    "but has none there now. Create it in __init__ or on_train_begin()."
                )
        return current

    def _weights(self) -> dict[str, torch.Tensor]:
        return {
            **dict(nn.Module.named_parameters(self._model)),
            **dict(self._model.named_buffers()),
        }

    def _pack_tensor(self, value: torch.Tensor, path: str, arrays: Arrays) -> Any:
        # A storage of no bytes has no address.
        near = self._by_storage.get(_storage_of(value), []) if value.numel() else []
        for name, weight in near:
            if value is weight:
                return {"$weight": name}
        if value.layout is not torch.strided:
            arrays[path] = to_array(value)
            return {"$tensor": [path, value.device.type, str(value.layout).partition(".")[2]]}
        for name, weight in near:
            if _place_of(value) == _place_of(weight):
                return {"$alias": name}
        if near:
            raise CannotKeepError(f"a tensor that is a part of the weight {near[0][0]}")
        arrays[path] = to_array(value)
        return {"$tensor": [path, value.device.type]}

    def _unpack_tensor(
        self, content: Any, current: Any, arrays: Mapping[str, np.ndarray[Any, Any]]
    ) -> torch.Tensor:
        path, device, *layout = content
        tensor = to_tensor(arrays[path])
        if layout:
            return tensor.to_sparse(layout=getattr(torch, layout[0])).to(available_device(device))
        is_like = isinstance(current, torch.Tensor) and (
            (current.shape, current.dtype, current.layout)
            == (tensor.shape, tensor.dtype, tensor.layout)
        )
        is_weight = is_like and _storage_of(current) in map(_storage_of, self._weights().values())
        if is_like and not is_weight:
            with torch.no_grad():
                # In place, because other objects may refer to the same tensor.
                kept: torch.Tensor = current.copy_(tensor)
                return kept
        return tensor.to(available_device(device))


class CallbackMemory:
    """Saves and restores the state of a job's callbacks.

    Args:
        callbacks: The callbacks.
        values: Converts their attributes to JSON and arrays.
    """

    def __init__(self, callbacks: Callbacks, values: TorchValues) -> None:
        self._callbacks, self._values = callbacks, values
        # The user's code sets arguments and class attributes again, so they are state only if a
        # callback has changed them.
        self._first = [
            {
                name: (value, values.digest(value))
                for name, value in callbacks.remembered(number).items()
                if name in arguments_of(each) or name not in vars(each)
            }
            for number, each in enumerate(callbacks.objects)
        ]
        self._made: dict[str, Any] | None = None
        # (number of a callback, name of an attribute) that existed after `on_train_begin`.
        self._begun: list[tuple[int, str]] = []
        self._containers = ContainerRestorer({})
        self._clocks = ClockReadings()

    def beginning(self) -> AbstractContextManager[None]:
        """Context manager around the calls of `on_train_begin`."""
        return self._clocks.beginning(
            lambda: {
                self._path(number, name): value
                for number in range(len(self._callbacks.objects))
                for name, value in self._callbacks.remembered(number).items()
            }
        )

    def begun(self) -> None:
        """Record which objects exist after `on_train_begin`, and so also exist in a resumed run.

        An object that is created later cannot be restored; `keep` rejects it.

        Raises:
            DefinitionError: A callback has state that cannot be stored.
        """
        self._made = None
        self.keep()
        begun = {
            (number, name): value
            for number in range(len(self._callbacks.objects))
            for name, value in self._callbacks.remembered(number).items()
        }
        self._begun = list(begun)
        self._containers = ContainerRestorer(begun)
        for (number, name), value in begun.items():
            # on_train_begin has set the argument, so its value of the file is state as well.
            if not self._is_as_in_file(number, name, value):
                self._first[number].pop(name, None)
        self._values.begin()
        for number in range(len(self._callbacks.objects)):
            for name, value in self._callbacks.remembered(number).items():
                # An argument that cannot be stored is not needed as long as it is unchanged.
                with contextlib.suppress(CannotKeepError):
                    self._values.encode(value, self._path(number, name), {})
        self._made = self._values.made

    def keep(self) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
        """Return the callbacks' state as JSON and arrays.

        Raises:
            DefinitionError: A value cannot be stored, or its object was created after
                `on_train_begin`.
        """
        values: dict[str, Any] = {_CLOCKS: self._clocks.state()}
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._values.begin()
        for number, callback in enumerate(self._callbacks.objects):
            key = self._key(number)
            if has_state(callback):
                kept = self._encoded(number, _STATE_DICT, callback.state_dict(), arrays)
                values[key] = {_STATE_DICT: kept}
                continue
            values[key] = {
                name: self._containers.mark(
                    (number, name), value, self._encoded(number, name, value, arrays)
                )
                for name, value in self._callbacks.remembered(number).items()
                if not self._is_as_in_file(number, name, value)
            }
            begun = {name for of, name in self._begun if of == number}
            if deleted := sorted(begun - self._callbacks.remembered(number).keys()):
                values[key][_DELETED] = deleted
        return values, arrays

    def load(self, state: Mapping[str, Any], arrays: State) -> None:
        """Restore the state of the callbacks.

        Args:
            state: The JSON that `keep` returned.
            arrays: The arrays that `keep` returned, possibly among others.

        Raises:
            DefinitionError: The object that a value is to be restored into does not exist.
        """
        for number, callback in enumerate(self._callbacks.objects):
            for name, kept in state.get(self._key(number), {}).items():
                if name == _STATE_DICT:
                    callback.load_state_dict(self._values.decode(kept, None, arrays))
                    continue
                if name == _DELETED:
                    for each in kept:
                        vars(callback).pop(each, None)
                    continue
                current = self._callbacks.remembered(number)
                decode = functools.partial(
                    self._values.decode, current=current.get(name), arrays=arrays
                )
                value = self._containers.restored((number, name), kept, decode)
                value = self._clocks.moved(state.get(_CLOCKS, {}), self._path(number, name), value)
                is_of_class = name in current and name not in vars(callback)
                setattr(type(callback) if is_of_class else callback, name, value)
        # Raises now if an attribute cannot be stored, rather than at the next checkpoint.
        self.keep()

    def _encoded(
        self, number: int, name: str, value: Any, arrays: dict[str, np.ndarray[Any, Any]]
    ) -> Any:
        path, kind = self._path(number, name), type(self._callbacks.objects[number]).__name__
        try:
            kept = self._values.encode(value, path, arrays)
            self._check_made(path)
        except CannotKeepError as error:
            what = "state_dict()" if name == _STATE_DICT else f"self.{name}"
            raise DefinitionError(
                f"{self._callbacks.where}: the callback {kind} keeps {error} in {what}, which no "
                "checkpoint can store, so a resumed training would continue differently. "
                f"{error.way_out or _INSTEAD}"
            ) from error
        return kept

    def _check_made(self, below: str) -> None:
        """Check that a stored value can be restored into objects that a resumed run has.

        A resumed run has only those that exist after `on_train_begin`.

        Args:
            below: Path of the value, such as that of a callback's attribute. All values within it
                are checked as well.

        Raises:
            CannotKeepError: An object was created after `on_train_begin`.
        """
        if self._made is None:
            return
        for path, now in self._values.made.items():
            if path == below or path.startswith(f"{below}/"):
                made = self._made.get(path)
                if made is not now and made != now:
                    what = name_of(now) if not isinstance(now, type) else now.__name__
                    raise CannotKeepError(f"a {what} that was created after on_train_begin()")

    def _is_as_in_file(self, number: int, name: str, value: Any) -> bool:
        if name not in self._first[number]:
            return False
        first, digest = self._first[number][name]
        return value is first if digest is None else self._values.digest(value) == digest

    def _path(self, number: int, name: str) -> str:
        return f"{CALLBACKS}{self._key(number)}/{name}"

    def _key(self, number: int) -> str:
        return f"{number}/{type(self._callbacks.objects[number]).__name__}"


def _is_code(value: Any) -> bool:
    """Return whether a value is not stored because user code recreates it, such as a function."""
    plain = (
        type, ModuleType, functools.partial, np.ufunc, re.Pattern, io.IOBase, _LOCK,
        csv.DictReader, csv.DictWriter, logging.Logger, logging.LoggerAdapter, logging.Handler,
        RemovableHandle,
    )  # fmt: skip
    return isinstance(value, plain) or inspect.isroutine(value) or type(value).__name__ in _WRITERS


def _omitted(module: nn.Module) -> dict[str, Any]:
    """Return the state of a module and its submodules that their `state_dict()` omits.

    Example:
        >>> average = nn.Linear(1, 1)
        >>> average.step = 7
        >>> _omitted(average)
        {'training': True, 'in_features': 1, 'out_features': 1, 'step': 7}
    """
    own = {_storage_of(each) for each in (*module.parameters(), *module.buffers())}
    persistent = module.state_dict().keys()
    found = {
        name: each
        for name, each in module.named_buffers()
        if name not in persistent and each.layout is torch.strided
    }
    for owner, each in module.named_modules():
        for name, value in vars(each).items():
            if (name in _MODES or name not in OF_MODULES) and _is_plain(value, own):
                found[f"{owner}.{name}".lstrip(".")] = value
    return found


def _is_plain(value: Any, own: Collection[int]) -> bool:
    """Return whether a value is a number, text or tensor, or a container of these alone.

    Args:
        value: The value of an attribute of a module.
        own: Storages of the module's weights. An attribute that refers to one, as those of an LSTM
            do, follows it, so it is not plain.
    """
    # Exact types: others, such as an enum or `torch.Size`, would not be restored as they were.
    if type(value) in (list, tuple):
        return all(_is_plain(each, own) for each in value)
    if type(value) is dict:
        return all(type(key) is str and _is_plain(each, own) for key, each in value.items())
    if isinstance(value, torch.Tensor):
        return not value.numel() or _storage_of(value) not in own
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufcU"
    return type(value) in _PLAIN or isinstance(value, np.number)


def _set_omitted(module: nn.Module, values: Mapping[str, Any]) -> None:
    """Restore what `_omitted` returned."""
    for name, value in values.items():
        path, _, attribute = name.rpartition(".")
        owner = module.get_submodule(path)
        is_buffer = attribute in dict(owner.named_buffers(recurse=False))
        setattr(owner, attribute, value) if is_buffer else vars(owner).update({attribute: value})


def _is_metric(value: Any) -> bool:
    """Return whether a value is a TorchMetrics metric.

    Callbacks must not keep one: its `state_dict()` usually omits its state, which would be lost.
    """
    return any(kind.__module__.startswith("torchmetrics.") for kind in type(value).__mro__)


def _storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _place_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()
