"""Compares a model's outputs and loss for a batch with those for two parts of that batch.

Workers share the batches of an update, so the result for an example must not depend on the other
examples of its batch. A model or loss that mixes examples (negatives from within the batch, a
balance over it, attention between examples) trains in one process only, and is rejected by name
where gradients are summed. BatchNorm is exempt: each worker normalizes over its own batch, which is
a documented difference.

The model runs in training mode, but with dropout and BatchNorm in evaluation mode, because some
models mix examples in training only. There are two special cases, in which the model is compared in
evaluation mode as well:

* The model draws random numbers (two seeds give two results), or raises on a part. Random numbers
  for a part alone would differ from those for the batch. Instead of a part alone, the model
  therefore gets a whole batch in which the other examples are replaced: it draws the same numbers,
  and the results for the part must not change.
* The model changes a buffer, so it may contain a normalization layer written by the user, which
  works like BatchNorm. Differences in training mode then only cause a warning.

A limit over the batch, such as the capacity of an expert, may be reached by a whole update but by
no worker's batch. So a batch of copies of one example is run as well, as large as an update. All
copies go to the same experts, so they reach such a limit; they must all have the same outputs.

Used by `trainer.py`, before the first updates and some later ones (`repeated_checks.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from elasticdl.data.batch import leaves
from elasticdl.errors import DefinitionError, raised_at
from elasticdl.training.padding_check import MeasuredLoss
from elasticdl.training.repeated_checks import LIKE_BATCH_NORM
from elasticdl.training.torch.buffers import differs
from elasticdl.training.torch.draw_log import DrawLog
from elasticdl.training.torch.outputs import as_plain_containers, copied
from elasticdl.training.torch.steps import Pairs, Steps, Tensors

if TYPE_CHECKING:
    from elasticdl.definition import Origin
    from elasticdl.training.torch.buffers import Buffers
    from elasticdl.training.torch.callback_changes import Modes
    from elasticdl.training.torch.losses import BatchLoss, TorchLoss

_log = logging.getLogger("elasticdl")

# The first batch of a worker repeats two records, which may be alike.
_CHECKS = 2
# Batches of copies: of how many examples, and how many times as large as a batch at most.
_CROWDED_EXAMPLES = 3
_MAX_CROWDING = 4
# Examples that any model must accept.
_FEWEST = 2
# Relative differences of losses and of outputs that rounding can cause. A GPU may multiply float32
# with as few digits (TensorFloat-32) as float16 has.
_ROUNDING, _ROUNDING_ON_GPU, _HALF_ROUNDING = (1e-4, 1e-3), (1e-3, 0.01), (4e-3, 0.02)
QUIET = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)  # noqa: SLF001 - their base


@dataclass(frozen=True, eq=False)
class _Made:
    """Results of running a model on a batch or a part of it, to compare with other runs.

    Attributes:
        outputs: The outputs as float64 tensors.
        loss: The loss, if there is one.
        moves: Whether the run changed a buffer.
        draws: A value that is equal for two runs with the same seed and the same random draws.
        is_half: Whether an operation returned float16 or bfloat16.
    """

    outputs: Sequence[torch.Tensor]
    loss: BatchLoss | None
    moves: bool
    draws: Hashable
    is_half: bool


class PartCheck:
    """Checks that a model computes the same results for examples in a batch as in parts of it.

    Args:
        origin: Prefix for error messages.
        model: The module.
        steps: Steps of the model, which compute its outputs and loss.
        loss: Compares the loss of a batch with the losses of its parts.
        modes: Sets the module's mode, training or evaluation.
        buffers: The buffers of the module, which are restored after each run.
        drawing: Function (number) -> context manager that seeds all random numbers drawn in its
            block.
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
        # Number of examples of the largest update for which copies were compared.
        self._compared_size = 0

    def is_done(self, num_examples: int, update_size: int) -> bool:
        """Return whether enough batches were checked, so that the next one need not be checked.

        After an update with more examples than any before, one more batch is checked. A limit over
        the batch, such as the capacity of an expert, may not be reached by fewer examples.

        Args:
            num_examples: Number of examples of the next batch.
            update_size: Number of examples of the largest update so far.
        """
        is_larger = update_size > max(self._compared_size, num_examples)
        return self._num_checks >= _CHECKS and not is_larger

    def state(self) -> dict[str, int]:
        """Return the number of checks made and the largest update they covered, as a JSON value.

        Another worker loads it, so that it does not repeat these checks.
        """
        return {"num_batches": self._num_checks, "compared_size": self._compared_size}

    def load_state(self, state: Mapping[str, int]) -> None:
        """Count the checks in another worker's `state` as made here, so as not to repeat them."""
        self._num_checks, self._compared_size = state["num_batches"], state["compared_size"]

    def check(self, batch: Tensors, update_size: int) -> None:
        """Check that the result for an example does not depend on the other examples of its batch.

        Compares the results for a batch with those for its parts, and those for copies of one
        example with each other.

        A batch of one example is joined with the previous one.

        Args:
            batch: The batch.
            update_size: Number of examples of the largest update so far.

        Raises:
            DefinitionError: The result for an example depends on the other examples.
        """
        if any(map(_has_no_statistics, self._model.modules())):
            self._num_checks, self._compared_size = _CHECKS, update_size
            return
        if batch.num_examples == 1:
            pair = self._pairs.with_the_one_before(batch)
            if pair is None:
                return
            batch = pair
        self._num_checks += 1
        for training in (True, False):
            if self._compare(batch, training=training):
                break
        if update_size > self._compared_size:
            self._compared_size = update_size
            self._check_crowded(batch, update_size)

    def measured(self, batch: Tensors) -> MeasuredLoss:
        """Return the loss of a batch in evaluation mode, without side effects."""
        made, again = (self._run(batch, moment, training=False) for moment in (0, 1))
        if made.loss is None:
            return MeasuredLoss(0.0, 1.0, [], 0.0)
        is_on_cpu = made.loss.value.device.type == "cpu"
        rounding = _ROUNDING if is_on_cpu else _ROUNDING_ON_GPU
        of_loss, of_outputs = _HALF_ROUNDING if made.is_half else rounding
        return MeasuredLoss(
            float(made.loss.value),
            float(made.loss.divisor),
            [tuple(output.shape[1:]) for output in made.outputs],
            max(of_loss, made.loss.precision) if made.is_half else of_loss,
            _value(made) != _value(again),
            [t.cpu().numpy() for t in made.outputs if t.ndim and len(t) == batch.num_examples],
            of_outputs,
        )

    def _check_crowded(self, batch: Tensors, update_size: int) -> None:
        """Check that copies of an example, as many as an update has, have the same outputs.

        They differ if the model has a limit over the batch, such as the capacity of an expert.

        Raises:
            DefinitionError: The outputs differ, and randomness does not explain it.
        """
        size = min(update_size, _MAX_CROWDING * batch.num_examples)
        if size <= batch.num_examples:
            return
        for number in range(_CROWDED_EXAMPLES):
            row = number * (batch.num_examples - 1) // (_CROWDED_EXAMPLES - 1)
            copies = batch.rows([row] * size)
            # Where a model is random in training, it is compared in evaluation mode.
            if any(self._copies_differ(copies, training=training) for training in (True, False)):
                raise DefinitionError(
                    f"{self._origin}: the model's outputs for an example depend on the other "
                    f"examples of its batch: {size} copies of one example, as many as an update "
                    "has, have different outputs. A limit on the number of examples or tokens in "
                    "a batch, such as the capacity of an expert, does this. Such a model can only "
                    "be trained in a single process and without --global_batch_size."
                )

    def _copies_differ(self, copies: Tensors, *, training: bool) -> bool:
        """Return whether copies of an example have different outputs; False for a random model."""

        def rows(moment: int) -> list[torch.Tensor]:
            outputs = self._run(copies, moment, training=training).outputs
            return [each for each in outputs if each.ndim and len(each) == copies.num_examples]

        try:
            outputs = rows(0)
            if _are_near(outputs, [each[:1].expand_as(each) for each in outputs]):
                return False
            return _are_near(outputs, rows(1))
        except Exception:  # noqa: BLE001 - not every model accepts repeated examples, or as many
            return False

    def _compare(self, batch: Tensors, *, training: bool) -> bool:
        """Compare the results for a batch with those for its parts, in one mode of the model.

        Returns:
            Whether that was conclusive. If not, the caller also compares in evaluation mode.

        Raises:
            DefinitionError: The result for an example depends on the other examples, or the model
                cannot compute a part of the batch.
        """
        size = batch.num_examples
        first = _first_part(size)
        parts = []
        try:
            whole, again = (self._run(batch, moment, training=training) for moment in (0, 1))
        except Exception:  # noqa: BLE001 - the step itself will report it
            return False
        if _value(whole) != _value(again) or not _are_near(whole.outputs, again.outputs):
            self._compare_replaced(batch, whole, training=training)
            return False
        for rows in (range(first), range(first, size)):
            try:
                parts.append(self._run(batch.rows(rows), 0, training=training))
            except Exception as error:  # noqa: BLE001 - a user's model may raise anything
                self._check_uncut(batch, whole, rows, error, training=training)
                return False
        one, other = parts
        self._steps.found_rows(
            [
                _lengths(*outputs) == [size, first, size - first]
                for outputs in zip(whole.outputs, one.outputs, other.outputs, strict=True)
            ]
        )
        joined = [
            _joined(*parts, first, size)
            for parts in zip(whole.outputs, one.outputs, other.outputs, strict=True)
        ]
        if not _are_near(whole.outputs, joined):
            self._report_coupling(
                whole,
                f"those of a batch of {size} differ from those of its first {first} and last "
                f"{size - first} examples",
            )
            return False
        if whole.moves:
            # In evaluation mode, the loss is compared as well.
            return False
        if whole.loss is not None and one.loss is not None and other.loss is not None:
            self._loss.compare(first, size, whole.loss, [one.loss, other.loss])
        return True

    def _compare_replaced(self, batch: Tensors, whole: _Made, *, training: bool) -> bool:
        """Check that replacing some examples of a batch does not change the results for the others.

        The runs have the same shapes and the same seed, so the model normally draws the same random
        numbers for the examples that stay. Otherwise the runs cannot be compared.

        Args:
            batch: The batch.
            whole: Results for the batch.
            training: Whether the model runs in training mode.

        Returns:
            Whether the runs could be compared.

        Raises:
            DefinitionError: The result for an example depends on the other examples.
        """
        size = batch.num_examples
        first = _first_part(size)
        # Copies of a single example: their mean differs from that of the examples they replace.
        head, tail = [size - 1] * first, [0] * (size - first)
        choices = [*range(first), *tail], [*head, *range(first, size)], [*head, *tail]
        try:
            one, other, neither = (
                self._run(batch.rows(rows), 0, training=training) for rows in choices
            )
            again = self._run(batch, 0, training=training)
        except Exception:  # noqa: BLE001 - not every model accepts repeated examples
            return False
        if any(run.draws != whole.draws for run in (one, other, neither, again)):
            return False
        if not _are_near(whole.outputs, again.outputs):
            # The model draws from a generator of its own.
            return False
        made = whole, one, other, neither
        if len({tuple(tensor.shape for tensor in run.outputs) for run in made}) > 1:
            # The shapes depend on values.
            return False
        by_output = zip(*(run.outputs for run in made), strict=True)
        expected = [_stayed(runs, first, size) for runs in by_output]
        if not _are_near(whole.outputs, expected):
            self._report_coupling(
                whole,
                f"those of the first {first} or of the last {size - first} examples of a batch of "
                f"{size} change if the others are replaced",
            )
        elif whole.loss is not None and not whole.moves:
            self._loss.compare_replaced(size, [run.loss for run in made if run.loss is not None])
        return True

    def _check_uncut(
        self, batch: Tensors, whole: _Made, rows: range, error: Exception, *, training: bool
    ) -> None:
        """Check a model that raises on a part of a batch, by running it on whole batches only.

        The examples outside the part are replaced instead of left out.

        Args:
            batch: The batch.
            whole: Results for the batch.
            rows: The examples of the part.
            error: The exception that the model raised.
            training: Whether the model runs in training mode.

        Raises:
            DefinitionError: The result for an example depends on the other examples, or this
                cannot be determined.
        """
        size, is_small = batch.num_examples, len(rows) < _FEWEST
        matrices = _matrices(batch.features, size)
        if is_small or not matrices:
            is_compared = self._compare_replaced(batch, whole, training=training)
            if is_small or is_compared:
                return
        end = "first" if rows.start == 0 else "last"
        graph = f" Features with a column for each example: {', '.join(matrices)}."
        raise DefinitionError(
            f"{raised_at(error, self._origin)}: the model computes a batch of {size} examples but "
            f"raises on its {end} {len(rows)} examples alone: {type(error).__name__}: {error}."
            f"{graph if matrices else ''} Workers share the batches of an update, so the result "
            "for an example must not depend on the other examples of its batch. Such a model "
            "can only be trained in a single process and without --global_batch_size."
        ) from error

    def _report_coupling(self, whole: _Made, what: str) -> None:
        """Reject a model whose results for an example depend on the other examples of the batch.

        If the model changes a buffer, it may contain a normalization layer. Then only a warning is
        logged, once.

        Args:
            whole: Results for the batch, which state whether the model changes a buffer.
            what: The difference that was found, for the error message.

        Raises:
            DefinitionError: The model changes no buffer.
        """
        if not whole.moves:
            raise DefinitionError(
                f"{self._origin}: the model's outputs for an example depend on the other examples "
                f"of its batch: {what}. Such a model can only be trained in a single process and "
                "without --global_batch_size."
            )
        if not self._has_reported:
            self._has_reported = True
            _log.warning(LIKE_BATCH_NORM, self._origin)

    def _run(self, batch: Tensors, moment: int, *, training: bool) -> _Made:
        # The changes that a call makes to buffers must not affect the outputs of the next one.
        looking = self._mode(training=training), self._buffers.restored(), self._drawing(moment)
        log = DrawLog()
        # The loss may change labels in place.
        batch = replace(batch, labels=copied(batch.labels))
        with looking[0], looking[1] as before, looking[2], torch.no_grad():
            with log:
                stepped = self._steps.training(self._model, batch)
            draws = log.draws()
            after = self._buffers.tensors()
            moves = training and any(differs(old, after[name]) for name, old in before.items())
        outputs = [
            t for t in leaves(as_plain_containers(stepped.outputs)) if isinstance(t, torch.Tensor)
        ]
        doubles = [(torch.view_as_real(t) if t.is_complex() else t).double() for t in outputs]
        if stepped.loss is not None:
            # A model that computes its own loss returns it among its outputs; the loss is checked
            # separately.
            value = float(stepped.loss.value)
            doubles = [t for t in doubles if t.ndim or float(t) != value]
        return _Made(doubles, stepped.loss, moves, draws, log.is_half)

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


def _first_part(size: int) -> int:
    """Return the size of the first of two parts of a batch of `size` examples.

    From four examples on, both parts have at least two, because a normalization over the batch
    needs two.
    """
    return max(min(_FEWEST, size // 2), size // 3)


def _matrices(features: Any, size: int) -> list[str]:
    """Return the names of features of shape [examples, examples, ...], such as a graph's edges.

    They explain, in an error, why a model cannot compute a part of a batch: only their rows are
    split, so a part has too many columns.

    Args:
        features: The features of a batch.
        size: Number of its examples.
    """
    if isinstance(features, Mapping):
        entries = {str(name): value for name, value in features.items()}
    elif isinstance(features, (list, tuple)):
        entries = {f"[{number}]": value for number, value in enumerate(features)}
    else:
        entries = {}
    return [
        name
        for name, value in entries.items()
        if isinstance(value, torch.Tensor) and value.shape[:2] == (size, size)
    ]


def _stayed(runs: Sequence[torch.Tensor], first: int, num_examples: int) -> torch.Tensor:
    """Return the output that a batch must have if no example affects another.

    The caller compares it with the actual output. It is computed from runs in which some examples
    were replaced by others: each row is taken from a run in which its example stayed.

    Args:
        runs: The same output of four runs: of the batch, and of the batch with its last examples
            replaced, with its first examples replaced, and with all of them replaced.
        first: Number of examples in the first part, which count as the first examples.
        num_examples: Number of examples in the batch.
    """
    whole, one, other, neither = runs
    if whole.ndim and len(whole) == num_examples:
        return torch.cat([one[:first], other[first:]])
    # One value per batch: a mean over examples, or independent of them.
    return one + other - neither


def _joined(
    whole: torch.Tensor, one: torch.Tensor, other: torch.Tensor, first: int, num_examples: int
) -> torch.Tensor | None:
    """Return the output that a batch must have if no example affects another.

    The caller compares it with the actual output. It is computed from the outputs for two parts of
    the batch: their rows are joined, or, without a row per example, their mean is taken.

    Args:
        whole: The output for the batch. Only its length is used, which shows whether it has one row
            per example.
        one: The same output for the first part.
        other: The same output for the rest.
        first: Number of examples in the first part.
        num_examples: Number of examples in the batch.

    Returns:
        The expected output; None if the shapes do not fit.
    """
    if _lengths(whole, one, other) == [num_examples, first, num_examples - first]:
        return torch.cat([one, other]) if one.shape[1:] == other.shape[1:] else None
    if one.shape != other.shape:
        return None
    # One value per batch, such as a penalty: a mean over examples, or independent of them.
    return (one * first + other * (num_examples - first)) / num_examples


def _lengths(*tensors: torch.Tensor) -> list[int]:
    return [len(each) if each.ndim else 0 for each in tensors]


def _are_near(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor | None]) -> bool:
    return all(map(_is_near, some, others))


def _is_near(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    if other is None or one.shape != other.shape:
        return False
    # Tolerant enough for bfloat16, in which a module may compute; mixing examples changes more.
    largest = float(one[torch.isfinite(one)].abs().max()) if torch.isfinite(one).any() else 0.0
    return bool(torch.allclose(one, other, rtol=0.0, atol=0.02 * largest + 1e-6, equal_nan=True))
