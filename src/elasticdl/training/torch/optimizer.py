"""Applies the user's optimizer, and converts its state to named arrays and back.

    optimizer/class                          the name of its class
    optimizer/param_groups/0/lr              a number or tensor of a param group
    optimizer/param_groups/0/betas/values    another value, such as a pair, encoded by `value_codec`
    optimizer/param_groups/1/params/values   the parameters' names, of a group that a hook added
    optimizer/NAME/exp_avg                   a *slot*: state of the parameter NAME
    optimizer/NAME/step:number               a slot that is a plain number
    optimizer/beside/values                  state outside groups and parameters
    optimizer/step_hooks/values              state of its hooks (`hook_memory.py`)

Slots are created at a parameter's first update; a parameter that never receives a gradient has no
slots. A saved state contains only the slots that exist, and loading one without slots removes the
present slots. The optimizer's `step` is called only for an update.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from elasticdl.data.batch import leaves
from elasticdl.errors import (
    DefinitionError,
    ElasticDLError,
    UserCodeError,
    raised_at,
    users_traceback,
)
from elasticdl.training.torch.failures import device_advice
from elasticdl.training.torch.hook_memory import HookMemory
from elasticdl.training.torch.tensors import to_array, to_tensor
from elasticdl.training.torch.untracked_state import digest
from elasticdl.training.torch.value_codec import Codec, UnkeepableValueError

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition

_CLASS, _GROUPS, _BESIDE, _HOOKS = "class", "param_groups/", "beside/", "step_hooks/"
# Calls of a user's zero_grad() before training, with a step between two of them.
_ZERO_GRADS = 3
_NUMBER = ":number"


class OptimizerState:
    """Applies the user's optimizer, and converts its state to arrays and back.

    Names of arrays are, for example, `param_groups/0/lr` and `fc.weight/exp_avg`: those in the
    module docstring, without the prefix `optimizer/`.

    Args:
        definition: Definition of the model, which creates the optimizer.
        parameters: All parameters of the model, by name.
        given: The parameters that the user's function receives: what the model's `parameters()`
            yields, in this order. A model may override that method, to train only some of them.
        model: The model that the parameters belong to.

    Raises:
        DefinitionError: The created object is not an optimizer that can be used here.
        UserCodeError: The user's function raised.
    """

    def __init__(
        self,
        definition: ModelDefinition,
        parameters: Mapping[str, nn.Parameter],
        given: Sequence[nn.Parameter],
        model: nn.Module,
    ) -> None:
        self._definition, self._model = definition, model
        self._parameters, self._given = dict(parameters), list(given)
        # An optimizer that uses parameters other than those passed to it would otherwise be
        # detected only when a run is resumed, which is too late.
        tried = _created(definition, [_like(p, torch.zeros_like(p)) for p in given], model)
        _check_zero_grad(tried, definition)
        self.optimizer = _created(definition, given, model)
        self._codec = Codec(parameters)
        self._memory = HookMemory(
            self.optimizer,
            parameters,
            model,
            definition.where("optimizer"),
            # `configure_optimizers` creates both.
            may_be_scheduled=definition.loss_within == "training_step",
        )
        self._num_groups = len(self.optimizer.param_groups)
        self._is_checked = False
        self._begins_with_slots = bool(self.optimizer.state)
        self._functions = {
            (number, key): value
            for number, group in enumerate(self.optimizer.param_groups)
            for key, value in group.items()
            if callable(value)
        }

    def step(self) -> None:
        """Apply one update from the parameters' `.grad`.

        Raises:
            DefinitionError: After the first update, the optimizer has state that cannot be stored.
            UserCodeError: The optimizer, or one of its hooks, raised.
        """
        try:
            self.optimizer.step()
        except (ElasticDLError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            text = (
                f"{raised_at(error, self._definition.where('optimizer'))}: step() of "
                f"{type(self.optimizer).__name__} raised:\n{users_traceback(error)}"
                f"{device_advice(error)}"
            )
            if _takes_closure(self.optimizer.step) and not _is_of_pytorch(self.optimizer):
                # For any exception, because an optimizer that requires a closure raises its own
                # error.
                text += (
                    "\n"
                    "It is called once per update and without a closure, because workers share "
                    "the batch."
                )
            raise UserCodeError(text) from error
        if not self._is_checked:
            # Slots are created by an update. The first checkpoint may be that of the last step.
            self.state()
            self._is_checked = True

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return copies of all slots (states of parameters), param groups and states of hooks.

        Raises:
            DefinitionError: The optimizer has state that cannot be stored.
        """
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        state = {_CLASS: np.frombuffer(_name_of(self.optimizer).encode(), np.uint8).copy()}
        for number, group in enumerate(self.optimizer.param_groups):
            if number >= self._num_groups:
                # A hook has added this group; the user's code recreates the others.
                members = self._codec.to_arrays(list(group["params"]))
                state |= {
                    f"{_GROUPS}{number}/params/{name}": array for name, array in members.items()
                }
            for key, value in group.items():
                if key != "params" and not self._is_of_the_code(number, key, value):
                    state |= self._group_arrays(f"{_GROUPS}{number}/{key}", key, value)
        beside: dict[str, Any] = {}
        remembered: Mapping[Any, Any] = self.optimizer.state
        for key, slots in remembered.items():
            if id(key) in names:
                state |= self._slot_arrays(names[id(key)], slots)
            elif isinstance(key, str):
                beside[key] = slots
            else:
                raise self._unkeepable(f"something beside the parameters ({key!r:.40})")
        try:
            kept = self._codec.to_arrays(beside) if beside else {}
        except UnkeepableValueError as error:
            raise self._unkeepable(str(error)) from error
        state |= {f"{_BESIDE}{name}": array for name, array in kept.items()}
        state |= {f"{_HOOKS}{name}": array for name, array in self._memory.state().items()}
        return state

    @property
    def remembered(self) -> list[Any]:
        """Objects of the user's code that hold state of hooks, such as a list they append to.

        Checkpoints store their contents, so `engines/file_variables.py` need not warn if they
        change.
        """
        return self._memory.objects

    def load(self, state: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
        """Restore a state; if it does not match, change nothing and return a line per mismatch."""
        saved = bytes(state.get(_CLASS, np.array([], np.uint8))).decode()
        name = _name_of(self.optimizer)
        if saved != name:
            return [f"class: {saved or 'missing'} in the checkpoint, {name} in the model file"]
        of_hooks = _below(_HOOKS, state)
        others = (_GROUPS, _BESIDE, _HOOKS)
        rest = {
            path: array
            for path, array in state.items()
            if path != _CLASS and not path.startswith(others)
        }
        slots: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
        for path, array in rest.items():
            of, _, slot = path.rpartition("/")
            slots.setdefault(of, {})[slot] = array
        groups_before = list(self.optimizer.param_groups)
        problems = self._add_groups(_below(_GROUPS, state))
        values, of_groups = self._group_values(_below(_GROUPS, state))
        problems += of_groups
        problems += [f"{of}: not in the model" for of in slots.keys() - self._parameters.keys()]
        problems += [f"hooks: {problem}" for problem in self._memory.problems(of_hooks)]
        if problems:
            self.optimizer.param_groups[:] = groups_before
            return sorted(problems)
        for group, settings in zip(self.optimizer.param_groups, values, strict=True):
            for key, value in settings.items():
                if key == "params":
                    continue
                if isinstance(group.get(key), torch.Tensor):
                    group[key].copy_(value)
                else:
                    group[key] = value
        self._set_slots(slots)
        of_others = _below(_BESIDE, state)
        if of_others:
            self.optimizer.state.update(self._codec.to_values(of_others))
        self._memory.load(of_hooks)
        return []

    def _add_groups(self, state: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
        """Replace the param groups that hooks have added by those in a saved state.

        Args:
            state: The saved values of all param groups.

        Returns:
            An empty list. If the model lacks a saved parameter: one line of text about it; the
            replacement is then incomplete.
        """
        members: dict[int, dict[str, np.ndarray[Any, Any]]] = {}
        for path, array in state.items():
            of_group, key, *more = path.split("/")
            if key == "params":
                members.setdefault(int(of_group), {})["/".join(more)] = array
        del self.optimizer.param_groups[self._num_groups :]
        is_named = any("param_names" in group for group in self.optimizer.param_groups)
        for number in sorted(members):
            try:
                parameters = self._codec.to_values(members[number])
            except KeyError as error:
                return [f"{_GROUPS}{number}/params: {error} is not in the model"]
            # All groups have names or none; the saved values contain the right ones.
            given = [(str(n), p) for n, p in enumerate(parameters)] if is_named else parameters
            self.optimizer.add_param_group({"params": given})
        return []

    def _set_slots(self, slots: Mapping[str, Mapping[str, np.ndarray[Any, Any]]]) -> None:
        fresh: Mapping[Any, Any] = {}
        if self._begins_with_slots and len(slots) < len(self._parameters):
            fresh = _created(self._definition, self._given, self._model).state
        groups = {id(p): group for group in self.optimizer.param_groups for p in group["params"]}
        self.optimizer.state.clear()
        for name, parameter in self._parameters.items():
            if name not in slots:
                if parameter in fresh:
                    self.optimizer.state[parameter] = fresh[parameter]
                continue
            group = groups.get(id(parameter), {})
            self.optimizer.state[parameter] = {
                slot.removesuffix(_NUMBER): array.item()
                if slot.endswith(_NUMBER)
                else to_tensor(array).to(_device(parameter, slot, group))
                for slot, array in slots[name].items()
            }

    def _is_of_the_code(self, number: int, key: str, value: Any) -> bool:
        """Return whether a value of a param group is a function, which checkpoints do not store.

        The user's code creates it again when training resumes.

        Args:
            number: Index of the group.
            key: Name of the value in the group.
            value: The present value.

        Raises:
            DefinitionError: The value is another function than when the optimizer was created. A
                resumed training would have the first one again.
        """
        if not callable(value):
            return False
        if value is self._functions.get((number, key)):
            return True
        raise self._unkeepable(f"a {type(value).__name__} in {key!r} that has changed")

    def _group_arrays(self, path: str, key: str, value: Any) -> dict[str, np.ndarray[Any, Any]]:
        if isinstance(value, torch.Tensor) or _is_number(value):
            return {path: self._array(key, value)}
        try:
            kept = self._codec.to_arrays(value)
        except UnkeepableValueError as error:
            raise self._unkeepable(f"{error} in {key!r}") from error
        return {f"{path}/{name}": array for name, array in kept.items()}

    def _group_values(
        self, state: Mapping[str, np.ndarray[Any, Any]]
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Decode the saved values of each param group.

        Args:
            state: The saved values of all param groups.

        Returns:
            The values of each group by name, and one line of text for each mismatch with the
            present groups.
        """
        flat: dict[tuple[int, str], dict[str, np.ndarray[Any, Any]]] = {}
        for path, array in state.items():
            of_group, key, *more = path.split("/")
            flat.setdefault((int(of_group), key), {})["/".join(more)] = array
        groups = self.optimizer.param_groups
        values: list[dict[str, Any]] = [{} for _ in groups]
        problems = [
            f"{_GROUPS}{number}: not in the model file"
            for number in sorted({number for number, _ in flat if number >= len(groups)})
        ]
        for (number, key), arrays in flat.items():
            if number >= len(groups):
                continue
            if "" not in arrays:
                values[number][key] = self._codec.to_values(arrays)
            elif isinstance(groups[number].get(key), torch.Tensor):
                values[number][key] = to_tensor(arrays[""])
            else:
                values[number][key] = arrays[""].item()
        for number, group in enumerate(groups):
            missing = [
                key
                for key, value in group.items()
                if key != "params" and key not in values[number] and not callable(value)
            ]
            problems += [f"{_GROUPS}{number}/{key}: missing in the checkpoint" for key in missing]
        return values, problems

    def _slot_arrays(self, name: str, slots: Mapping[str, Any]) -> dict[str, Any]:
        return {
            f"{name}/{slot}{_NUMBER if _is_number(value) else ''}": self._array(slot, value)
            for slot, value in slots.items()
            if value is not None
        }

    def _array(self, slot: str, value: Any) -> np.ndarray[Any, Any]:
        if isinstance(value, torch.Tensor):
            return to_array(value)
        if _is_number(value):
            return np.asarray(value)
        raise self._unkeepable(f"a {type(value).__name__} in {slot!r}")

    def _unkeepable(self, what: str) -> DefinitionError:
        return DefinitionError(
            f"{self._definition.where('optimizer')}: the optimizer {type(self.optimizer).__name__} "
            f"keeps {what}; a checkpoint can store only tensors and numbers for each parameter. "
            'Keep tensors there instead, also those of an object: self.state[parameter]["name"] = '
            "tensor."
        )


def gradient_for(optimizer: torch.optim.Optimizer, gradient: torch.Tensor) -> torch.Tensor:
    """Convert a dense gradient to the layout that the optimizer needs: sparse for SparseAdam."""
    return gradient.to_sparse(1) if isinstance(optimizer, torch.optim.SparseAdam) else gradient


def _created(
    definition: ModelDefinition, parameters: Sequence[nn.Parameter], model: nn.Module
) -> torch.optim.Optimizer:
    """Call the user's code to create an optimizer for these parameters, and check the optimizer.

    Args:
        definition: The model definition, which has the user's function.
        parameters: The parameters to optimize.
        model: The model, which the function may receive as well.

    Raises:
        DefinitionError: The created object is not an optimizer that can be used here.
        UserCodeError: The user's function raised.
    """
    create = definition.create_optimizer()
    try:
        optimizer = create(parameters, model) if callable(create) else create
    except ElasticDLError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"{raised_at(error, definition.where('optimizer'))}: creating the optimizer raised:\n"
            f"{users_traceback(error)}"
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise DefinitionError(
            f"{definition.where('optimizer')}: the optimizer is a {type(optimizer).__module__}."
            f"{type(optimizer).__name__}; expected one of PyTorch, such as "
            f"torch.optim.Adam(parameters, lr=0.001).{_what_else(optimizer)}"
        )
    given = {id(parameter) for parameter in parameters}
    if any(id(p) not in given for group in optimizer.param_groups for p in group["params"]):
        raise DefinitionError(
            f"{definition.where('optimizer')}: the optimizer is for other parameters than those "
            "passed to the function. Use the argument: def optimizer(parameters): return "
            "torch.optim.Adam(parameters)."
        )
    if _needs_closure(optimizer.step):
        raise DefinitionError(
            f"{definition.where('optimizer')}: {type(optimizer).__name__} evaluates the loss any "
            "number of times within one step, which cannot be divided among workers. Use an "
            "optimizer whose step() needs no closure."
        )
    return optimizer


def _what_else(returned: object) -> str:
    """Return advice on an object that the user's function returned in place of an optimizer.

    The advice is for several optimizers, a GradScaler or a scheduler; empty for other objects.
    """
    several = leaves(returned)
    if sum(isinstance(each, torch.optim.Optimizer) for each in several) > 1:
        return (
            " Several optimizers, as for a GAN, are not supported: each update is made by one "
            "optimizer, which workers share."
        )
    if any(isinstance(each, torch.amp.GradScaler) for each in several):
        return ' For loss scaling, set precision = "fp16" in the model file.'
    if any(isinstance(each, torch.optim.lr_scheduler.LRScheduler) for each in several):
        return " Create the scheduler in a separate function: def lr_scheduler(optimizer)."
    return ""


def _check_zero_grad(optimizer: torch.optim.Optimizer, definition: ModelDefinition) -> None:
    """Check that a user-defined zero_grad() only clears gradients.

    Training does not call `zero_grad()`, but sets gradients to None. The method is tested here on
    an optimizer that is not used otherwise, before its first step and after some, because the
    method may let gradients of several batches accumulate.

    Raises:
        DefinitionError: The method leaves a gradient, or changes the optimizer or a parameter.
        UserCodeError: The method raised.
    """
    if getattr(optimizer.zero_grad, "__func__", None) is torch.optim.Optimizer.zero_grad:
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    inner = inspect.unwrap(getattr(optimizer.zero_grad, "__func__", optimizer.zero_grad))
    code = getattr(inner, "__code__", None)
    where = f"{code.co_filename}:{code.co_firstlineno}" if code else definition.where("optimizer")
    for _ in range(_ZERO_GRADS):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        _check_clears(optimizer, parameters, definition, where)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        # A step that raises, or that needs a closure, is reported in training.
        with suppress(Exception):
            optimizer.step()


def _check_clears(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    definition: ModelDefinition,
    where: object,
) -> None:
    """Call zero_grad() once, and check that it sets gradients to None and changes nothing else."""
    before = digest(vars(optimizer))
    try:
        optimizer.zero_grad()
    except Exception as error:
        raise UserCodeError(
            f"{raised_at(error, definition.where('optimizer'))}: zero_grad() of the optimizer "
            f"raised:\n{users_traceback(error)}"
        ) from error
    kept = [p.grad for p in parameters if p.grad is not None]
    changed = "changes the optimizer or its parameters" if digest(vars(optimizer)) != before else ""
    if kept:
        is_zero = not any(bool(gradient.any()) for gradient in kept)
        changed = f"leaves gradients{' of zero' if is_zero else ''} where it should set None"
    if changed:
        raise DefinitionError(
            f"{where}: zero_grad() of {type(optimizer).__name__} {changed}. It would not be "
            "called: gradients start as None in each update, also on workers and after a resume. "
            "Do it in step(), and keep tensors in self.state[parameter]; or remove it."
        )


def _takes_closure(step: Callable[..., Any]) -> bool:
    return "closure" in inspect.signature(step).parameters


def _is_of_pytorch(optimizer: torch.optim.Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.")


def _needs_closure(step: Callable[..., Any]) -> bool:
    closure = inspect.signature(step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def _like(parameter: nn.Parameter, data: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(data.detach(), requires_grad=parameter.requires_grad)


def _device(parameter: nn.Parameter, slot: str, group: Mapping[str, Any]) -> torch.device:
    """Return the device of a slot, as in PyTorch: CPU for the step count, else the parameter's."""
    if slot == "step" and not (group.get("capturable") or group.get("fused")):
        return torch.device("cpu")
    return parameter.device


def _name_of(optimizer: torch.optim.Optimizer) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def _below(prefix: str, state: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    return {
        path.removeprefix(prefix): array for path, array in state.items() if path.startswith(prefix)
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float))
