"""Compares a model's outputs and loss for a batch with those for two parts of that batch.

Workers share the batches of an update, so the result for an example must not depend on the other
examples of its batch. A model or loss that mixes examples (negatives from within the batch, a
balance over it, attention between examples) trains in one process only, and is rejected by name
where gradients are summed. BatchNorm is exempt: each worker normalizes over its own batch, which is
a documented difference.

The model runs in training mode, but with dropout and BatchNorm in evaluation mode, because some
models mix examples in training only. If two seeds give two results, the model draws random numbers
and cannot be compared, so it runs in evaluation mode instead. If it changes a buffer, it may
contain a normalization layer written by the user, which works like BatchNorm. Then differences in
training mode only cause a warning, and the model is compared in evaluation mode as well.

Used by `trainer.py`, before the first updates and some later ones (`repeated_checks.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from elasticdl.data.batch import leaves
from elasticdl.errors import DefinitionError
from elasticdl.training.repeated_checks import LIKE_BATCH_NORM
from elasticdl.training.torch.buffers import differs
from elasticdl.training.torch.outputs import as_arrays
from elasticdl.training.torch.steps import Pairs, Steps, Tensors

if TYPE_CHECKING:
    from elasticdl.definition import Origin
    from elasticdl.training.torch.buffers import Buffers
    from elasticdl.training.torch.callback_changes import Modes
    from elasticdl.training.torch.losses import BatchLoss, TorchLoss

_log = logging.getLogger("elasticdl")

# The first batch of a worker repeats two records, which may be alike.
_CHECKS = 2
QUIET = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)  # noqa: SLF001 - their base


@dataclass(frozen=True, eq=False)
class _Made:
    """Results of running a model on some examples.

    Attributes:
        outputs: The outputs as float64 tensors.
        loss: The loss, if there is one.
        moves: Whether the run changed a buffer.
    """

    outputs: Sequence[torch.Tensor]
    loss: BatchLoss | None
    moves: bool


class PartCheck:
    """Checks that a model computes the same for a batch as for its parts.

    Args:
        origin: Prefix of errors.
        model: The module.
        steps: Computes the outputs and the loss.
        loss: Compares losses.
        modes: The modes of the module.
        buffers: The buffers of the module, which are restored after each run.
        drawing: Number -> a context manager that seeds all random numbers drawn in its block.
    """

    def __init__(
        self,
        origin: Origin,
        model: nn.Module,
        steps: Steps,
        *,
        loss: TorchLoss,
        modes: Modes,
        buffers: Buffers,
        drawing: Callable[[int], AbstractContextManager[None]],
    ) -> None:
        self._origin, self._model, self._steps, self._loss = origin, model, steps, loss
        self._modes, self._buffers, self._drawing = modes, buffers, drawing
        self._num_checks, self._pairs = 0, Pairs()
        self._has_reported = False

    @property
    def is_done(self) -> bool:
        """Whether the first batches have been checked."""
        return self._num_checks >= _CHECKS

    def check(self, batch: Tensors) -> None:
        """Compare a batch with its parts.

        Raises:
            DefinitionError: The result for an example depends on the other examples.
        """
        if any(map(_has_no_statistics, self._model.modules())):
            self._num_checks = _CHECKS
            return
        if batch.num_examples == 1:
            pair = self._pairs.with_the_one_before(batch)
            if pair is None:
                return
            batch = pair
        self._num_checks += 1
        for training in (True, False):
            if self._compare(batch, training=training):
                return

    def _compare(self, batch: Tensors, *, training: bool) -> bool:
        """Compare a batch with its parts in one mode; return whether that was conclusive.

        Raises:
            DefinitionError: The result for an example depends on the other examples.
        """
        size = batch.num_examples
        first = max(1, size // 3)
        try:
            whole, again = (self._run(batch, moment, training=training) for moment in (0, 1))
            is_random = _value(whole) != _value(again)
            if is_random or not _are_near(whole.outputs, again.outputs):
                return False
            one = self._run(batch.rows(slice(0, first)), 0, training=training)
            other = self._run(batch.rows(slice(first, size)), 0, training=training)
        except Exception:  # noqa: BLE001 - the step itself, or the first short batch, will report it
            return False
        self._steps.found_rows(
            [
                bool(a.ndim and b.ndim and len(a) == first and len(b) == size - first)
                for a, b in zip(one.outputs, other.outputs, strict=True)
            ]
        )
        joined = [
            _joined(*parts, first, size)
            for parts in zip(whole.outputs, one.outputs, other.outputs, strict=True)
        ]
        if not _are_near(whole.outputs, joined):
            if whole.moves:
                if not self._has_reported:
                    self._has_reported = True
                    _log.warning(LIKE_BATCH_NORM, self._origin)
                return False
            raise DefinitionError(
                f"{self._origin}: the model's outputs for an example depend on the "
                f"other examples of its batch: those of a batch of {size} differ from those of "
                f"its first {first} and last {size - first} examples. It trains in one process "
                "without --global_batch_size."
            )
        if whole.moves:
            # In evaluation mode, the loss is compared as well.
            return False
        if whole.loss is not None and one.loss is not None and other.loss is not None:
            self._loss.compare(first, size, whole.loss, [one.loss, other.loss])
        return True

    def _run(self, batch: Tensors, moment: int, *, training: bool) -> _Made:
        # The changes that a call makes to buffers must not affect the outputs of the next one.
        looking = self._mode(training=training), self._buffers.restored(), self._drawing(moment)
        with looking[0], looking[1] as before, looking[2], torch.no_grad():
            stepped = self._steps.training(self._model, batch)
            after = self._buffers.tensors()
            moves = training and any(differs(old, after[name]) for name, old in before.items())
        outputs = [t for t in leaves(as_arrays(stepped.outputs)) if isinstance(t, torch.Tensor)]
        doubles = [(torch.view_as_real(t) if t.is_complex() else t).double() for t in outputs]
        if stepped.loss is not None:
            # A model that computes its own loss returns it among its outputs; the loss is checked
            # separately.
            value = float(stepped.loss.value)
            doubles = [t for t in doubles if t.ndim or float(t) != value]
        return _Made(doubles, stepped.loss, moves)

    @contextmanager
    def _mode(self, *, training: bool) -> Iterator[None]:
        if not training:
            self._modes.eval()
            yield
            return
        self._modes.train()
        quiet = [m for m in self._model.modules() if isinstance(m, QUIET) and m.training]
        try:
            for module in quiet:
                module.training = False
            yield
        finally:
            for module in quiet:
                module.training = True


def _value(made: _Made) -> float | None:
    return None if made.loss is None else float(made.loss.value)


def _has_no_statistics(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None  # noqa: SLF001


def _joined(
    whole: torch.Tensor, one: torch.Tensor, other: torch.Tensor, first: int, num_examples: int
) -> torch.Tensor | None:
    """Combine the outputs for two parts into those for the batch; None if the shapes do not fit."""
    sizes = [len(each) if each.ndim else 0 for each in (whole, one, other)]
    if sizes == [num_examples, first, num_examples - first]:
        return torch.cat([one, other]) if one.shape[1:] == other.shape[1:] else None
    if one.shape != other.shape:
        return None
    # One value per batch, such as a penalty: a mean over examples, or independent of them.
    return (one * first + other * (num_examples - first)) / num_examples


def _are_near(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor | None]) -> bool:
    return all(map(_is_near, some, others))


def _is_near(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    if other is None or one.shape != other.shape:
        return False
    # Tolerant enough for bfloat16, in which a module may compute; mixing examples changes more.
    largest = float(one[torch.isfinite(one)].abs().max()) if torch.isfinite(one).any() else 0.0
    return bool(torch.allclose(one, other, rtol=0.0, atol=0.02 * largest + 1e-6, equal_nan=True))
