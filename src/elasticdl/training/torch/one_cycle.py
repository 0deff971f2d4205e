"""Handles the end of a OneCycleLR, also in a SequentialLR or ChainedScheduler.

OneCycleLR is the only scheduler of PyTorch that cannot step any further after its last step. After
one more step the learning rate rises again; the second raises an exception. The functions here find
out how many of its steps a training makes, and let it repeat its last step.

Callers: `schedulers.py`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from torch.optim.lr_scheduler import ChainedScheduler, OneCycleLR, SequentialLR


def one_cycles(scheduler: Any, num_steps: int) -> Iterator[tuple[OneCycleLR, int]]:
    """Yield each OneCycleLR in a scheduler, and the number of steps that it makes.

    Args:
        scheduler: A OneCycleLR, or a scheduler that may combine some with others.
        num_steps: Number of steps that `scheduler` makes; a OneCycleLR in it may make fewer.
    """
    if isinstance(scheduler, OneCycleLR):
        yield scheduler, num_steps
    elif isinstance(scheduler, ChainedScheduler):
        for each in scheduler._schedulers:  # noqa: SLF001 - no public name, here and below
            yield from one_cycles(each, num_steps)
    elif isinstance(scheduler, SequentialLR):
        starts = [0, *scheduler._milestones]  # noqa: SLF001
        # At a milestone, the next scheduler is set to its step 0.
        ends = [milestone - 1 for milestone in scheduler._milestones] + [num_steps]  # noqa: SLF001
        for each, start, end in zip(scheduler._schedulers, starts, ends, strict=True):  # noqa: SLF001
            yield from one_cycles(each, max(0, min(end, num_steps) - start))


@contextlib.contextmanager
def holding_ended(scheduler: Any) -> Iterator[list[OneCycleLR]]:
    """Context manager in which each OneCycleLR that has ended repeats its last step.

    Call `scheduler.step()` in the block. Other schedulers within `scheduler` step as usual, so a
    SequentialLR reaches its next milestone.

    Args:
        scheduler: A OneCycleLR, or a scheduler that may combine some with others.

    Yields:
        A list that receives each OneCycleLR that made its last step again.
    """
    held: list[OneCycleLR] = []
    ended = [one for one, _ in one_cycles(scheduler, 0) if one.last_epoch >= one.total_steps - 1]
    for one in ended:
        one.step = functools.partial(_step_again, one, held)  # type: ignore[method-assign]
    try:
        yield held
    finally:
        for one in ended:
            del one.step


def _step_again(one: OneCycleLR, held: list[OneCycleLR], epoch: int | None = None) -> None:
    if epoch is None:
        one.last_epoch -= 1
        held.append(one)
    OneCycleLR.step(one, epoch)
