"""State of an optimizer's hooks: schedules, counters, averages of weights.

A hook (`optimizer.register_step_post_hook`) and a function that replaces `optimizer.step` are a
user's functions, and the values that they change are outside the optimizer's state. They are found
by `function_memory.py` and stored in a checkpoint, as are attributes that the user's code sets on
the optimizer; a value that cannot be stored is rejected when the trainer is created.

Callers: `optimizer.py`.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from elasticdl.errors import DefinitionError
from elasticdl.training.torch.function_memory import (
    RememberedValue,
    is_library,
    is_of_library,
    remembered_by_function,
    remembered_by_object,
)
from elasticdl.training.torch.value_codec import Codec, UnkeepableValueError

if TYPE_CHECKING:
    import numpy as np

    from elasticdl.definition import Origin

_OF_EVERY_OPTIMIZER = {
    *vars(torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.0)),
    "step",
    "_opt_called",
}


class HookMemory:
    """Reads the state of an optimizer's hooks for a checkpoint, and restores it.

    Args:
        optimizer: The optimizer that has the hooks; attributes that the user's code sets are state
            too.
        parameters: The model's parameters, by name.
        origin: Prefix of errors.
        may_be_scheduled: Whether the optimizer may have learning rate schedulers that no hook
            refers to, because the trainer steps them.

    Raises:
        DefinitionError: A hook has state that cannot be stored, a hook is registered for all
            optimizers, or there is a scheduler that no hook refers to and that must not be there.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, nn.Parameter],
        origin: Origin,
        *,
        may_be_scheduled: bool = False,
    ) -> None:
        self._optimizer, self._origin = optimizer, origin
        self._codec = Codec(parameters)
        _check_global_hooks(origin)
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
        values = {}
        for place in self._places():
            try:
                values[place.name] = place.read()
            except UnkeepableValueError as error:
                raise self._refused(place, error) from error
        if not values:
            return {}
        try:
            return self._codec.to_arrays(values)
        except UnkeepableValueError as error:
            raise DefinitionError(
                f"{self._origin}: the hooks of the optimizer keep {error}; a checkpoint can store "
                "numbers, strings, tensors, and lists and dicts of them."
            ) from error

    def problems(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
        """Return one line for each mismatch between a saved state and the state of these hooks."""
        saved = self._codec.to_values(arrays) if arrays else {}
        names = {place.name for place in self._places()}
        return [f"{name}: not in the checkpoint" for name in sorted(names - saved.keys())] + [
            f"{name}: not in the model file" for name in sorted(saved.keys() - names)
        ]

    def load(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Restore the hooks' state; `problems` must have found no mismatch."""
        if not arrays:
            return
        saved = self._codec.to_values(arrays)
        for place in self._places():
            place.write(saved[place.name])

    def _places(self) -> list[RememberedValue]:
        seen: set[int] = {id(self._optimizer)}
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
        places += remembered_by_object(self._optimizer, "optimizer", sorted(theirs), seen)
        return places

    def _refused(self, place: RememberedValue, error: UnkeepableValueError) -> DefinitionError:
        return DefinitionError(
            f"{self._origin}: the optimizer keeps {error} ({place.name}), which no checkpoint can "
            "store, so a resumed training would continue differently. Keep numbers, strings and "
            "tensors, lists and dicts of them, or implement state_dict() and load_state_dict()."
        )


def _is_scheduler(value: Any) -> bool:
    return isinstance(value, torch.optim.lr_scheduler.LRScheduler)


@functools.cache
def _set_by_library(kind: type[Any]) -> frozenset[str]:
    """Return the attributes that an optimizer's methods set; none if its class is the user's."""
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
    """Check that no function of a user is a hook of all optimizers of the process.

    It would also be called in later trainings of the same process, and twice once its file is
    imported again.
    """
    hooks = (*_global_optimizer_pre_hooks.values(), *_global_optimizer_post_hooks.values())
    for hook in map(_unwrapped, hooks):
        if not is_of_library(type(hook)) or not is_library(getattr(hook, "__module__", "")):
            name = getattr(hook, "__qualname__", type(hook).__qualname__)
            raise DefinitionError(
                f"{origin}: {name} is registered as a hook of all optimizers of the process "
                "(register_optimizer_step_pre_hook or register_optimizer_step_post_hook), which "
                "would also change other trainings. Register it for this optimizer: "
                "optimizer.register_step_pre_hook(hook) or "
                "optimizer.register_step_post_hook(hook)."
            )


def _unwrapped(hook: Any) -> Any:
    while isinstance(hook, functools.partial):
        hook = hook.func
    return hook
