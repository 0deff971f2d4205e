"""Saves and restores what hooks of the optimizer and of gradients change, such as counters.

    optimizer.register_step_post_hook(hook)               a hook of the optimizer
    optimizer.step = another                              a hook of the optimizer
    parameter.register_hook(hook)                         a hook of gradients
    module.register_full_backward_hook(hook)              a hook of gradients

Hooks are a user's functions, and the values that they change are outside the optimizer's state.
`function_memory.py` finds these values, and checkpoints contain them, together with attributes that
the user's code sets on the optimizer and on parameters. A value that cannot be stored is rejected
when the trainer is created; if it looks like a setting, only after it has changed. Hooks of
gradients are rejected if gradients are summed over workers.

Callers: `optimizer.py`; `callback_hooks.py` for the list of hooks.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from elasticdl.errors import DefinitionError
from elasticdl.training.torch.function_memory import (
    RememberedValue,
    is_library,
    is_of_library,
    objects_of,
    remembered_by_function,
    remembered_by_object,
)
from elasticdl.training.torch.refusals import is_of_users_file, place_of
from elasticdl.training.torch.untracked_state import digest
from elasticdl.training.torch.value_codec import NUMBERS, Codec, UnkeepableValueError

if TYPE_CHECKING:
    from elasticdl.definition import Origin

_ATTRIBUTES, _DEFAULTS = "attributes of parameters", "defaults"
_LATER = "attributes of the optimizer"
_ATTRIBUTES_AND_DEFAULTS = {_ATTRIBUTES, _DEFAULTS, _LATER}
_GLOBAL_HOOKS = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)
_OF_EVERY_OPTIMIZER = {
    *vars(torch.optim.SGD([torch.zeros(1, requires_grad=True, device="cpu")], 0.0)),
    "step",
    "_opt_called",
}


class HookMemory:
    """Reads the state of an optimizer's hooks for a checkpoint, and restores it.

    Args:
        optimizer: The optimizer that has the hooks. Attributes that the user's code sets on it are
            stored too.
        parameters: The model's parameters, by name.
        model: The model. Hooks that callbacks register on it later are left to
            `callback_hooks.py`.
        origin: Prefix for error messages.
        may_be_scheduled: Whether the function that creates the optimizer may also create its
            learning rate schedulers, as `configure_optimizers` does; the trainer steps them. If
            False, a scheduler that no hook refers to is rejected.

    Raises:
        DefinitionError: A hook has state that cannot be stored, a hook is registered for all
            optimizers or modules, or the optimizer has a scheduler that nothing would step.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, nn.Parameter],
        model: nn.Module,
        origin: Origin,
        *,
        may_be_scheduled: bool = False,
    ) -> None:
        self._optimizer, self._origin = optimizer, origin
        self._codec = Codec(parameters)
        self._parameters, self._model = dict(parameters), model
        self._gradient_hooks = gradient_hooks(parameters, model)
        self._first_attributes = {
            name: {key: digest(value) for key, value in _attributes_of(parameter).items()}
            for name, parameter in parameters.items()
        }
        self._first_defaults = digest(optimizer.defaults)
        self._first_names = frozenset(vars(optimizer))
        self._settings: dict[str, str] = {}
        _check_global_hooks(origin)
        self._settings = {
            place.name: _digest_of(place)
            for place in self._places()
            if self._may_be_left_out(place)
        }
        self.state()
        is_scheduled = hasattr(optimizer.step, "_wrapped_by_lr_sched") and not may_be_scheduled
        if is_scheduled and not any(_is_scheduler(place.get()) for place in self._places()):
            raise DefinitionError(
                f"{origin}: a learning rate scheduler was created for the optimizer, but nothing "
                "here would call its step(). Create it in a separate function: def "
                "lr_scheduler(optimizer): return torch.optim.lr_scheduler.StepLR(optimizer, 30)."
            )

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the state of the hooks as arrays; empty if there is none.

        Raises:
            DefinitionError: A value cannot be stored.
        """
        values: dict[str, Any] = {}
        for place in self._places():
            if place.name in self._settings and self._settings[place.name] == _digest_of(place):
                continue
            try:
                values[place.name] = place.read()
            except UnkeepableValueError as error:
                raise self._refused(place.name, error) from error
        values |= self._attributes_and_defaults()
        try:
            return self._codec.to_arrays(values) if values else {}
        except UnkeepableValueError:
            for name, value in values.items():
                try:
                    self._codec.to_arrays(value)
                except UnkeepableValueError as error:
                    raise self._refused(name, error) from error
            raise

    @property
    def objects(self) -> list[Any]:
        """The objects that hold the hooks' state, such as a list that a hook appends to.

        Checkpoints store their contents, so `engines/file_variables.py` need not warn if they
        change.
        """
        return objects_of(self._places())

    def problems(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
        """Return one line for each mismatch between a saved state and the state of these hooks."""
        saved = self._codec.to_values(arrays) if arrays else {}
        saved = {
            name: value for name, value in saved.items() if name not in _ATTRIBUTES_AND_DEFAULTS
        }
        names = {
            place.name
            for place in self._places()
            if place.name in saved or place.name not in self._settings
        }
        later = " when the optimizer is created; give it a first value there"
        return [f"{name}: not in the checkpoint" for name in sorted(names - saved.keys())] + [
            f"{name}: not in the model file{later if name.startswith('optimizer.') else ''}"
            for name in sorted(saved.keys() - names)
        ]

    def load(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Restore the hooks' state; `problems` must have found no mismatch."""
        saved = self._codec.to_values(arrays) if arrays else {}
        for place in self._places():
            if place.name in saved:
                place.write(saved[place.name])
        self._load_attributes_and_defaults(saved)

    def _may_be_left_out(self, place: RememberedValue) -> bool:
        """Return whether a value looks like a setting: it need not be stored until it changes.

        That is a number that the hook only reads, or a value of a type that cannot be stored.
        """
        if not place.may_be_setting:
            return False
        if place.is_read_only and isinstance(place.get(), NUMBERS):
            return True
        try:
            self._codec.to_arrays(place.read())
        except UnkeepableValueError:
            return True
        return False

    def _attributes_and_defaults(self) -> dict[str, Any]:
        """Return what user code has set on parameters, on the optimizer and in its `defaults`.

        Returns:
            Up to three entries: the attributes of all parameters; the attributes that the optimizer
            did not have when it was created; and its `defaults`, if they have changed since.

        Raises:
            DefinitionError: A value cannot be stored.
        """
        attributes: dict[str, dict[str, Any]] = {}
        for name, parameter in self._parameters.items():
            for attribute, value in _attributes_of(parameter).items():
                try:
                    self._codec.to_arrays(value)
                except UnkeepableValueError as error:
                    # It is unchanged, or a function or a class.
                    first = self._first_attributes[name].get(attribute)
                    if digest(value) == first or callable(value):
                        continue
                    raise self._refused(f"{attribute} of the parameter {name}", error) from error
                attributes.setdefault(name, {})[attribute] = value
        values: dict[str, Any] = {_ATTRIBUTES: attributes} if attributes else {}
        defaults = self._optimizer.defaults
        if digest(defaults) != self._first_defaults:
            try:
                self._codec.to_arrays(defaults)
            except UnkeepableValueError as error:
                raise self._refused("optimizer.defaults", error) from error
            values[_DEFAULTS] = dict(defaults)
        if later := self._set_later():
            values[_LATER] = later
        return values

    def _set_later(self) -> dict[str, Any]:
        """Return the plain attributes that the optimizer did not have when it was created.

        User code sets them in training. A container may be shared with a callback, which a copy
        would not be, so it is left to `_places`.
        """
        kind: Any = type(self._optimizer)
        excluded = self._first_names | _OF_EVERY_OPTIMIZER | _set_by_library(kind)
        return {
            name: value
            for name, value in vars(self._optimizer).items()
            if name not in excluded and _is_plain(value)
        }

    def _load_attributes_and_defaults(self, saved: Mapping[str, Any]) -> None:
        attributes = saved.get(_ATTRIBUTES, {})
        for name, parameter in self._parameters.items():
            now, mine = vars(parameter), attributes.get(name, {})
            for attribute in _attributes_of(parameter).keys() - mine.keys():
                if attribute not in self._first_attributes[name]:
                    del now[attribute]
            now.update(mine)
        self._optimizer.defaults.update(saved.get(_DEFAULTS, {}))
        later = saved.get(_LATER, {})
        for name in self._set_later().keys() - later.keys():
            delattr(self._optimizer, name)
        vars(self._optimizer).update(later)

    def _places(self) -> list[RememberedValue]:
        seen = {id(each) for each in (self._optimizer, *self._model.modules())}
        places: list[RememberedValue] = []
        hooks = (
            *self._optimizer._optimizer_step_pre_hooks.values(),  # noqa: SLF001 - no public name
            *self._optimizer._optimizer_step_post_hooks.values(),  # noqa: SLF001
        )
        for number, hook in enumerate(hooks):
            places += remembered_by_function(hook, f"hook {number}", seen)
        attributes = vars(self._optimizer)
        if "step" in attributes:
            places += remembered_by_function(attributes["step"], "step", seen)
        kind: Any = type(self._optimizer)
        theirs = attributes.keys() - _OF_EVERY_OPTIMIZER - _set_by_library(kind)
        theirs -= self._set_later().keys()
        places += remembered_by_object(self._optimizer, "optimizer", sorted(theirs), seen)
        for name, hook in self._gradient_hooks.items():
            found = remembered_by_function(hook, name, seen)
            places += [replace(place, may_be_setting=True) for place in found]
        return places

    def _refused(self, name: str, error: UnkeepableValueError) -> DefinitionError:
        of_gradients = (h for each, h in self._gradient_hooks.items() if name.startswith(each))
        hook = next(of_gradients, None)
        keeper = (
            f"{self._origin}: the optimizer"
            if hook is None
            else f"{place_of(hook, self._origin)}: a hook of gradients"
        )
        return DefinitionError(
            f"{keeper} keeps {error} ({name}), which no checkpoint can "
            "store, so a resumed training would continue differently. Keep numbers, strings and "
            "tensors, lists and dicts of them, or implement state_dict() and load_state_dict()."
        )


def gradient_hooks(parameters: Mapping[str, nn.Parameter], model: nn.Module) -> dict[str, Any]:
    """Return the gradient hooks of a model and its parameters: description -> function."""
    found: list[tuple[str, Any]] = []
    for name, parameter in parameters.items():
        of_tensor: Any = parameter
        for hooks in (of_tensor._backward_hooks, of_tensor._post_accumulate_grad_hooks):  # noqa: SLF001 - no public name
            found += [(f"hook of the parameter {name}", hook) for hook in (hooks or {}).values()]
    for name, module in model.named_modules():
        for of_module in (module._backward_pre_hooks, module._backward_hooks):  # noqa: SLF001
            found += [(f"hook of {name or 'the model'}", hook) for hook in of_module.values()]
    return {f"{name}, number {number}": hook for number, (name, hook) in enumerate(found)}


def _attributes_of(parameter: nn.Parameter) -> dict[str, Any]:
    """Return the attributes that the user's code, and not the compiler, has set on a parameter."""
    return {k: v for k, v in vars(parameter).items() if not k.startswith("_dynamo")}


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number, a string or None, or a tuple of such values."""
    if isinstance(value, tuple):
        return type(value) is tuple and all(map(_is_plain, value))
    return type(value) in NUMBERS or isinstance(value, (np.number, np.bool_))


def _digest_of(place: RememberedValue) -> str:
    try:
        return digest(place.get())
    except ValueError:
        # A variable that has no value yet.
        return ""


def _is_scheduler(value: Any) -> bool:
    return isinstance(value, torch.optim.lr_scheduler.LRScheduler)


@functools.cache
def _set_by_library(kind: type[Any]) -> frozenset[str]:
    """Return the attributes that the methods of a library's optimizer class set.

    All other attributes of an optimizer were set by the user's code, and are stored. For a user's
    class the result is empty, so all its attributes are stored.
    """
    if not is_of_library(kind):
        return frozenset()
    methods = (
        inspect.unwrap(method)
        for base in kind.__mro__
        for method in vars(base).values()
        if isinstance(method, types.FunctionType)
    )
    return frozenset(
        instruction.argval
        for method in methods
        for instruction in dis.get_instructions(method)
        if instruction.opname == "STORE_ATTR"
    )


def _check_global_hooks(origin: Origin) -> None:
    """Check that no function of a user is a hook of all optimizers or modules of the process.

    It would also be called in later trainings of the same process, and twice once its file is
    imported again.
    """
    of_optimizers = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
    for hook in _hooks_in(of_optimizers):
        if not is_of_library(type(hook)) or not is_library(getattr(hook, "__module__", "")):
            raise DefinitionError(
                f"{origin}: {_name_of(hook)} is registered as a hook of all optimizers of the "
                "process "
                "(register_optimizer_step_pre_hook or register_optimizer_step_post_hook), which "
                "would also change other trainings. Register it for this optimizer: "
                "optimizer.register_step_pre_hook(hook) or "
                "optimizer.register_step_post_hook(hook)."
            )
    for hook in _hooks_in(getattr(nn.modules.module, name) for name in _GLOBAL_HOOKS):
        if is_of_users_file(hook):
            code = hook if inspect.isroutine(hook) else type(hook).__call__
            raise DefinitionError(
                f"{place_of(code, origin)}: {_name_of(hook)} is registered as a hook of all "
                "modules of the process (register_module_forward_hook and the like of "
                "torch.nn.modules.module), which would also change other trainings, and what it "
                "keeps is in no checkpoint. Register it on the modules of this model: for module "
                "in model.modules(): module.register_forward_hook(hook). In a notebook, restart "
                "the kernel then, because the hook stays registered."
            )


def _hooks_in(dicts: Iterable[Mapping[Any, Any]]) -> list[Any]:
    return [_unwrapped(hook) for hooks in dicts for hook in hooks.values()]


def _name_of(hook: Any) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__qualname__))


def _unwrapped(hook: Any) -> Any:
    while isinstance(hook, functools.partial):
        hook = hook.func
    return hook
