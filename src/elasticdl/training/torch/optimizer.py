"""The user's optimizer over a model's parameters, and what it remembers as named arrays.

What PyTorch's optimizers remember of a parameter (its *slots*: `exp_avg`, `step`, ...) begins to
exist at the parameter's first update, and a parameter that never gets a gradient never has any.
So a state names the slots that are there, and taking over one without slots forgets them. Which
slots belong to this optimizer is found by rehearsing a step on copies of the parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from elasticdl.errors import DefinitionError, ElasticDLError, UserCodeError, users_traceback
from elasticdl.training.torch.tensors import to_array, to_tensor

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition


class OptimizerState:
    """The optimizer of a training, and its state by names without `optimizer/`.

    Args:
        definition: Makes the optimizer.
        parameters: All of the model's, by name.

    Raises:
        DefinitionError: What is made is no optimizer that can be used here.
        UserCodeError: The user's function raised.
    """

    def __init__(self, definition: ModelDefinition, parameters: Mapping[str, nn.Parameter]) -> None:
        self._definition = definition
        self._parameters = dict(parameters)
        # An optimizer that reaches for other parameters than it is given would be found out when
        # a training is resumed, when it is too late.
        _created(definition, [_like(p, torch.empty_like(p)) for p in parameters.values()])
        self.optimizer = _created(definition, list(parameters.values()))

    def step(self) -> None:
        """Make one update from the parameters' `.grad`."""
        self.optimizer.step()

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return copies of all slots, and of the learning rates, which may change as well.

        Raises:
            DefinitionError: The optimizer remembers something that is no tensor and no number.
        """
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        state = {
            _rate_path(number): self._array("lr", group["lr"])
            for number, group in enumerate(self.optimizer.param_groups)
            if "lr" in group
        }
        for parameter, slots in self.optimizer.state.items():
            if id(parameter) not in names:
                raise self._unkeepable(f"something beside the parameters ({parameter!r:.40})")
            for slot, value in slots.items():
                if value is not None:
                    state[f"{names[id(parameter)]}/{slot}"] = self._array(slot, value)
        return state

    def load(self, state: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
        """Take over a state, unless there are problems: a line for each of them is returned."""
        groups = self.optimizer.param_groups
        rates = {_rate_path(i): group for i, group in enumerate(groups) if "lr" in group}
        slots: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
        for path in state.keys() - rates.keys():
            name, _, slot = path.rpartition("/")
            slots.setdefault(name, {})[slot] = state[path]
        expected = self._rehearsed() if slots else {}
        problems = [f"{path}: missing in the checkpoint" for path in rates if path not in state]
        problems += [f"{name}: not in the model" for name in slots.keys() - expected.keys()]
        problems += [
            f"{name}/{slot}: {_shape_of(slots[name].get(slot))} in the checkpoint, "
            f"{_shape_of(value)} in the optimizer"
            # A parameter without any slot has had no gradient yet.
            for name in slots.keys() & expected.keys()
            for slot, value in expected[name].items()
            if slot not in slots[name] or slots[name][slot].shape != np.shape(value)
        ]
        if problems:
            return sorted(problems)
        self._set_slots(slots, expected)
        # Last: a rate that is a tensor may be that of the rehearsal, which may have changed it.
        for path, group in rates.items():
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].copy_(to_tensor(state[path]))
            else:
                group["lr"] = state[path].item()
        return []

    def _set_slots(
        self,
        slots: Mapping[str, Mapping[str, np.ndarray[Any, Any]]],
        expected: Mapping[str, Mapping[str, Any]],
    ) -> None:
        # Some optimizers give every parameter its slots when they are made.
        fresh = _created(self._definition, list(self._parameters.values())).state
        groups = {id(p): group for group in self.optimizer.param_groups for p in group["params"]}
        self.optimizer.state.clear()
        for name, parameter in self._parameters.items():
            if name not in slots:
                if parameter in fresh:
                    self.optimizer.state[parameter] = fresh[parameter]
                continue
            group = groups.get(id(parameter), {})
            self.optimizer.state[parameter] = {
                slot: array.item()
                if _is_number(expected[name].get(slot))
                else to_tensor(array).to(_device(parameter, slot, group))
                for slot, array in slots[name].items()
            }

    def _rehearsed(self) -> dict[str, dict[str, Any]]:
        """Return the slots after a step of an optimizer like this one, for every parameter."""
        copies = {name: _like(p, p.detach().clone()) for name, p in self._parameters.items()}
        rehearsing = _created(self._definition, list(copies.values()))
        for copy in copies.values():
            if copy.requires_grad:
                copy.grad = gradient_for(rehearsing, torch.zeros_like(copy))
        rehearsing.step()
        return {
            name: {k: v for k, v in rehearsing.state.get(copy, {}).items() if v is not None}
            for name, copy in copies.items()
        }

    def _array(self, slot: str, value: Any) -> np.ndarray[Any, Any]:
        if isinstance(value, torch.Tensor):
            return to_array(value)
        if _is_number(value):
            return np.asarray(value)
        raise self._unkeepable(f"a {type(value).__name__} in {slot!r}")

    def _unkeepable(self, what: str) -> DefinitionError:
        return DefinitionError(
            f"{self._definition.origin}: the optimizer {type(self.optimizer).__name__} remembers "
            f"{what}; a checkpoint can keep tensors and numbers of parameters."
        )


def gradient_for(optimizer: torch.optim.Optimizer, gradient: torch.Tensor) -> torch.Tensor:
    """Return a dense gradient as an optimizer takes it: one of PyTorch's takes sparse ones only."""
    return gradient.to_sparse(1) if isinstance(optimizer, torch.optim.SparseAdam) else gradient


def _created(definition: ModelDefinition, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return a new optimizer of the user's over these parameters."""
    create = definition.create_optimizer()
    try:
        optimizer = create(parameters) if callable(create) else create
    except ElasticDLError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"{definition.origin}: making the optimizer raised:\n{users_traceback(error)}"
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise DefinitionError(
            f"{definition.origin}: the optimizer is a {type(optimizer).__module__}."
            f"{type(optimizer).__name__}; expected one of PyTorch, such as "
            "torch.optim.Adam(parameters, lr=0.001)."
        )
    given = {id(parameter) for parameter in parameters}
    if any(id(p) not in given for group in optimizer.param_groups for p in group["params"]):
        raise DefinitionError(
            f"{definition.origin}: the optimizer is for other parameters than those it is given. "
            "Use the argument: def optimizer(parameters): return torch.optim.Adam(parameters)."
        )
    if _needs_closure(optimizer.step):
        raise DefinitionError(
            f"{definition.origin}: {type(optimizer).__name__} evaluates the loss as often as it "
            "likes within one step, which cannot be shared by workers. Take an optimizer whose "
            "step() needs no closure."
        )
    return optimizer


def _needs_closure(step: Callable[..., Any]) -> bool:
    closure = inspect.signature(step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def _like(parameter: nn.Parameter, data: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(data.detach(), requires_grad=parameter.requires_grad)


def _device(parameter: nn.Parameter, slot: str, group: Mapping[str, Any]) -> torch.device:
    """Return where PyTorch keeps a slot: the count of steps stays here, others go along."""
    if slot == "step" and not (group.get("capturable") or group.get("fused")):
        return torch.device("cpu")
    return parameter.device


def _rate_path(number: int) -> str:
    return f"param_groups/{number}/lr"


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float))


def _shape_of(value: Any) -> str:
    if value is None:
        return "missing"
    return type(value).__name__ if _is_number(value) else f"{value.dtype}{list(value.shape)}"
