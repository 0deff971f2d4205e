"""Tries a scheduler before training, on copies.

`failure` makes a step with a scheduler of PyTorch, which checks few of its options when it is made.

`loses_state` tests whether the state_dict() of a user's scheduler contains all that its step()
uses. A copy makes a few steps; its state is loaded into another copy. If both then set different
learning rates, a resumed training would continue differently.

Callers: `schedulers.py`.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import warnings
from numbers import Real
from typing import Any

import torch
from torch.optim import Optimizer, lr_scheduler

from elasticdl.training.torch.function_memory import is_of_library
from elasticdl.training.torch.untracked_state import digest

_NUM_STEPS = 3


def failure(scheduler: Any, optimizer: Optimizer) -> str:
    """Return why the first step() of a scheduler would fail on an option's type; else "".

    For example "step_size is '10', a str; expected a number". A scheduler of the user's own class
    is not tried, nor one that calls a function of the user's, which might count its calls.

    Args:
        scheduler: The scheduler, which has not made a step; it is not changed.
        optimizer: The optimizer whose learning rates it sets; it is not changed.
    """
    if _calls_users_code(scheduler):
        return ""
    with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):
        copied, _ = _copied(scheduler, optimizer)
        is_plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
        try:
            copied.step(*((1.0,) if is_plateau else ()))
        except TypeError as error:
            return _wrong_option(scheduler) or f"{type(error).__name__}: {error}"
    return ""


def _calls_users_code(scheduler: Any) -> bool:
    return (
        not is_of_library(type(scheduler))
        or hasattr(scheduler, "lr_lambdas")
        or getattr(scheduler, "_scale_fn_custom", None) is not None
        or any(map(_calls_users_code, getattr(scheduler, "_schedulers", ())))
    )


def _wrong_option(scheduler: Any) -> str:
    """Return an option of a scheduler that should be a number and is not, in words; else ""."""
    for name, option in inspect.signature(type(scheduler)).parameters.items():
        value = getattr(scheduler, name, 0)
        is_number = option.default is option.empty or isinstance(option.default, Real)
        if is_number and (value is None or isinstance(value, (str, list, tuple))):
            kind = "" if value is None else f", a {type(value).__name__}"
            return f"{name} is {value!r}{kind}; expected a number"
    return ""


def loses_state(scheduler: Any, optimizer: Optimizer) -> bool:
    """Return whether a scheduler, restored from its state, sets other rates than the original.

    Only the user's classes with their own state_dict() are tested, and only if they can be copied.

    Args:
        scheduler: The scheduler, which has not made a step; it is not changed.
        optimizer: The optimizer whose learning rates it sets; it is not changed.
    """
    state_dict = getattr(type(scheduler), "state_dict", None)
    if is_of_library(type(scheduler)) or state_dict is lr_scheduler.LRScheduler.state_dict:
        return False
    is_plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
    metrics = (1.0,) if is_plateau else ()
    try:
        # The first step may warn that the optimizer has made none; a class may print its rates.
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
            trained, others = _copied(scheduler, optimizer)
            resumed, groups = _copied(scheduler, optimizer)
            for _ in range(_NUM_STEPS):
                trained.step(*metrics)
            resumed.load_state_dict(copy.deepcopy(trained.state_dict()))
            for mine, other in zip(groups, others, strict=True):
                mine.update({k: copy.deepcopy(v) for k, v in other.items() if k != "params"})
            for _ in range(_NUM_STEPS):
                trained.step(*metrics)
                resumed.step(*metrics)
                if _digest_of(groups) != _digest_of(others):
                    return True
    except Exception:  # noqa: BLE001 - the user's class may raise anything, also when copied
        return False
    return False


def _copied(scheduler: Any, optimizer: Optimizer) -> tuple[Any, list[dict[str, Any]]]:
    """Copy a scheduler for a trial; the copy sets the rates of a stand-in for the optimizer.

    Returns:
        The copy, and the param groups of the stand-in, which show the learning rates that it sets.
    """
    groups = [
        {
            **{key: copy.deepcopy(value) for key, value in group.items() if key != "params"},
            "params": [torch.zeros(1, requires_grad=True)],
        }
        for group in optimizer.param_groups
    ]
    stand_in = torch.optim.SGD(groups, lr=0.1)
    return copy.deepcopy(scheduler, {id(optimizer): stand_in}), stand_in.param_groups


def _digest_of(groups: list[dict[str, Any]]) -> str:
    return digest([{k: v for k, v in group.items() if k != "params"} for group in groups])
