"""Encodes changes of a module's buffers as float32 numbers, so that they add up over workers.

A worker's batch changes a buffer in one of four ways (`Reduction`). Each is encoded so that the sum
over workers can be turned into the change that the batches of all workers make as one:

    way    a change that is                                  is sent
    MEAN   a mean over examples, as of running statistics    multiplied by the number of examples
    STEP   the same in each step: num_batches_tracked        as it is
    SUM    a count of examples or tokens                     as it is
    DRAW   random numbers, independent of the examples       as a draw that all workers share

The sum is divided by the number of examples for MEAN, by the number of batches for STEP and DRAW.

An example of a DRAW is a matrix of orthogonal random features that is redrawn now and then. The
mean of several workers' draws would not be orthogonal, so all workers send the same draw. The
forward pass of a batch still uses the worker's own draw, like dropout.

The reduction is known for buffers of BatchNorm and its relatives. For others, the change that a
batch makes is compared with the changes that two parts of it make, the first few times that the
buffer changes. A change that is independent of the examples is also compared with the change that
another seed gives. A change may only seem independent (the sign of a mean is often the same for all
parts), so it is compared with the changes that single examples make. Each contribution includes
flags that state the reduction of each change, so a worker can apply a change of a buffer that its
own batches have not changed. A buffer that changes in none of these ways (a maximum, a queue) is
rejected by name.

Some later batches are compared again (`repeated_checks.py`). A difference then only causes a
warning. The reduction stays as it is, so workers need not agree about a difference.

Integers are split into signed digits of 16 bits, which float32 adds exactly; a float64 is sent as
two float32, which keep ten decimal digits of the change. Unchanged buffers send zeros, so infinity
and NaN in them are preserved.

    | changes of all buffers | flags and fingerprints of all buffers |

The flags state whether the reduction is SUM, MEAN, or one of STEP and DRAW. The fingerprint and its
square show, after summing, whether all workers sent the same change.

Callers: `trainer.py`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch
from torch.nn.modules.batchnorm import _NormBase

from elasticdl.errors import DefinitionError

if TYPE_CHECKING:
    from elasticdl.definition import Origin
    from elasticdl.training.torch.buffers import Buffers

_log = logging.getLogger("elasticdl")

Tensors: TypeAlias = Mapping[str, torch.Tensor]
_Changes: TypeAlias = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]

_DIGIT_BITS = 16
_HALF_DIGIT = 1 << (_DIGIT_BITS - 1)
# Integers below this are exact in float32.
_EXACT = 1 << 24
# Masks and tables of indices are large and never change; their space in every sum would be wasted.
_MAX_WHOLE_NUMBERS = 1 << 16
# Several comparisons, because a buffer may seem to change in one way by accident, for example if
# all examples are equal.
_NUM_COMPARISONS = 3
_FLOAT64_PARTS = 2
_ROUNDED = 1e-2
_HIGH_BITS = ~0xFFF
_VOTES = 5
# Variance of fingerprints between 0.5 and 1 that is taken for rounding: float32 sums of squares.
_SAME_VARIANCE = 1e-5
_DRAWS_DIFFER = (
    ". It is drawn at random, and the same seed gives other numbers for other batches. Draw it "
    "before other random numbers of forward, or from a generator that is seeded by a buffer that "
    "counts steps"
)
# For later comparisons: a settled statistic changes little, so the order in which its examples are
# summed counts more than at first. A change that is not a mean differs by more.
_TOLERANCE = 0.02
# Roundings of a buffer's value in a step and in a comparison, in units of its last place.
_NUM_ROUNDINGS = 8
_NEITHER = (
    "changes neither like a mean over examples (running statistics), nor like a sum over them (a "
    "count), nor by the same amount in each step"
)
# Shifts of a buffer's value that reveal a change that depends on it: below and above the usual
# sizes of ring buffers.
_SHIFTS = (1, 1000, 65_521)


class Reduction(Enum):
    """How the changes that parts of a batch make to a buffer combine into the whole batch's change.

    MEAN: their mean, weighted by examples. STEP: each part makes the same change. SUM: their sum.
    DRAW: random numbers, which all workers must draw alike.
    """

    MEAN = "mean"
    STEP = "step"
    SUM = "sum"
    DRAW = "draw"


# Changes that each batch of an update makes alike.
_SAME = frozenset({Reduction.STEP, Reduction.DRAW})
# What a draw looks like under one seed.
_LIKE_DRAWS = frozenset({Reduction.MEAN, Reduction.STEP})


@dataclass(frozen=True)
class BatchParts:
    """The changes that a batch, and two parts of it, make to buffers, to infer `Reduction`s from.

    Attributes:
        whole: Buffer name -> change that the batch makes, as `change_of` returns it.
        first: Buffer name -> change that the first part makes.
        last: Buffer name -> change that the rest makes.
        sizes: Number of examples in the two parts.
        again: Function (number) -> changes that the batch makes, by buffer name, if the number is
            added to all values of the buffers before. This shows whether the change of a buffer
            depends on its value, as a count with a limit does.
    """

    whole: Tensors
    first: Tensors
    last: Tensors
    sizes: tuple[int, int]
    again: Callable[[int], Tensors]

    def of(self, name: str) -> _Changes:
        """Return three changes of a buffer: by the batch, by its first part and by the rest.

        None stands for no change.
        """
        return self.whole.get(name), self.first.get(name), self.last.get(name)


class Draws(Protocol):
    """Protocol of a function that runs a model on two examples, with draws equal on all workers."""

    def __call__(self, seed: int, examples: tuple[int, int] = (0, 0)) -> Tensors:
        """Run the model on two examples; return the change that this makes to each buffer, by name.

        The random numbers depend on (seed, step) only, so they are equal on all workers.

        Args:
            seed: Number that distinguishes several calls in one step.
            examples: Positions of the two examples in the batch; they may be equal.
        """
        ...


class TorchStatistics:
    """Encodes changes of buffers as float32 numbers that add up over workers, and applies the sum.

    Args:
        buffers: The buffers of the model.
        origin: Prefix for error messages.
        device: Device on which the changes are computed.
    """

    def __init__(self, buffers: Buffers, origin: Origin, device: torch.device) -> None:
        self._buffers, self._origin, self._device = buffers, origin, device
        self._reductions: dict[str, Reduction] = {}
        self._num_comparisons: dict[str, int] = {}
        # Not compared again: those of BatchNorm, and those that were reported.
        self._settled: set[str] = set()
        self._widths: dict[str, int] = {}
        for name, tensor in buffers.tensors().items():
            self._widths[name] = _width(tensor)
            if isinstance(buffers.owner(name), _NormBase):
                self._reductions[name] = (
                    Reduction.MEAN if tensor.is_floating_point() else Reduction.STEP
                )
                self._num_comparisons[name] = _NUM_COMPARISONS
                self._settled.add(name)

    @property
    def size(self) -> int:
        """Number of float32 values that `pack` returns for a batch.

        They are the encoded changes and, for each buffer, flags that state its `Reduction` and
        fingerprints of its change.
        """
        tensors = self._buffers.tensors()
        payload = sum(tensors[name].numel() * width for name, width in self._widths.items())
        return payload + _VOTES * len(self._widths)

    def pack(
        self,
        before: Tensors,
        num_examples: int,
        compare: Callable[[], BatchParts],
        draws: Draws,
        *,
        is_finite: bool = True,
        again_at: int | None = None,
    ) -> list[torch.Tensor]:
        """Encode a batch's changes of buffers as 1-D float32 tensors, `size` numbers in all.

        Args:
            before: Copies of the buffers from before the batch.
            num_examples: Number of examples in the batch.
            compare: Function () -> changes that parts of the batch make, to find the `Reduction` of
                a buffer. As it runs the model, it is called only if that is needed.
            draws: Function that runs the model with random numbers that are equal on all workers.
                Called for a buffer whose change may consist of random numbers.
            is_finite: Whether the loss is finite. If not, the changes are encoded as zeros, so that
                the user sees the error about the loss, and none about a buffer.
            again_at: If the `Reduction`s that are known already are to be checked on this batch:
                the number of the step, for the warning. Else None.

        Raises:
            DefinitionError: A change cannot be added up.
        """
        payloads, votes = [], []
        parts: BatchParts | None = None
        draws = functools.cache(draws)
        for name, tensor in self._buffers.tensors().items():
            change = self._change(name, before[name], tensor) if is_finite else None
            if change is None:
                size = tensor.numel() * self._widths[name]
                payloads.append(torch.zeros(size, dtype=torch.float32, device=self._device))
                votes += [0.0] * _VOTES
                continue
            if self._num_comparisons.get(name, 0) < _NUM_COMPARISONS:
                parts = parts or compare()
                self._learn(name, parts, draws)
            elif again_at is not None and name not in self._settled:
                # Some models do not accept a small part; this must not end a running job.
                with suppress(Exception):
                    parts = parts or compare()
                    self._compare_again(name, parts, again_at)
            way = self._reductions[name]
            if way is Reduction.DRAW:
                change = self._drawn(name, draws, change)
            payloads.append(
                _encoded(
                    change * num_examples if way is Reduction.MEAN else change, self._widths[name]
                )
            )
            fingerprint = _fingerprint(change) if way in _SAME else 0.0
            votes += [
                float(way is Reduction.SUM),
                float(way is Reduction.MEAN),
                float(way in _SAME),
                fingerprint,
                fingerprint**2,
            ]
        return [*payloads, torch.tensor(votes, dtype=torch.float32, device=self._device)]

    def unpack(
        self, total: torch.Tensor, num_examples: int, num_contributions: int
    ) -> dict[str, torch.Tensor | None]:
        """Return the change of each buffer, float64 or int64; None if it is unchanged.

        Args:
            total: Summed contributions, float32[size].
            num_examples: Number of examples in all contributions.
            num_contributions: Number of contributions.

        Raises:
            DefinitionError: Contributions disagree about a buffer.
        """
        tensors = self._buffers.tensors()
        sizes = [tensors[name].numel() * width for name, width in self._widths.items()]
        *payloads, votes = torch.split(total, [*sizes, _VOTES * len(sizes)])
        ballots = votes.reshape(-1, _VOTES).tolist()
        changes: dict[str, torch.Tensor | None] = {}
        for (name, width), payload, (for_sum, for_mean, for_same, *marks) in zip(
            self._widths.items(), payloads, ballots, strict=True
        ):
            if not for_sum and not for_mean and not for_same:
                changes[name] = None
                continue
            tensor = tensors[name]
            if (for_sum > 0) + (for_mean > 0) + (for_same > 0) > 1:
                raise self._disagree(name)
            if for_same and (
                for_same != num_contributions or not _are_same(marks, num_contributions)
            ):
                raise self._disagree(name)
            if tensor.is_floating_point():
                divisor = num_examples if for_mean else num_contributions if for_same else 1
                change = payload.double().reshape(width, -1).sum(0) / divisor
            else:
                change = self._whole(
                    name, payload.reshape(width, -1), num_contributions if for_same else 1
                )
            changes[name] = change.reshape(tensor.shape)
        return changes

    def add(self, changes: Mapping[str, torch.Tensor | None]) -> None:
        """Add changes to the buffers.

        Args:
            changes: Name -> change, or None if the buffer is unchanged. Where a change is 0, the
                value keeps its bits, so infinity and NaN are preserved.
        """
        with torch.no_grad():
            for name, tensor in self._buffers.tensors().items():
                change = changes[name]
                if change is None:
                    continue
                if tensor.is_floating_point():
                    wide = torch.promote_types(tensor.dtype, torch.float32)
                    moved = tensor.to(wide) + change.to(wide)
                    tensor.copy_(torch.where(change == 0, tensor, moved.to(tensor.dtype)))
                else:
                    tensor.copy_(tensor.to(torch.int64) + change)

    def _whole(self, name: str, digits: torch.Tensor, divisor: int) -> torch.Tensor:
        if bool((digits.abs() >= _EXACT).any()):
            raise DefinitionError(
                f"{self._origin}: the changes of {name} by {divisor} batches are too large to be "
                "added up exactly. Use a smaller --global_batch_size."
            )
        exact = digits.round().to(torch.int64)
        if bool((exact % divisor != 0).any()):
            raise self._disagree(name)
        exact = exact // divisor
        total = torch.zeros_like(exact[0])
        for place, digit in enumerate(exact):
            total += digit * (1 << (_DIGIT_BITS * place))
        return total

    def _change(self, name: str, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor | None:
        change = change_of(before, after)
        if change is None:
            return None
        if not self._widths[name]:
            is_sparse = after.layout != torch.strided
            what = "is sparse" if is_sparse else f"holds {after.numel():,} whole numbers"
            raise self._refused(name, f"{what} and changes")
        return self._finite(name, change)

    def _finite(self, name: str, change: torch.Tensor) -> torch.Tensor:
        if change.is_floating_point() and not bool(torch.isfinite(change).all()):
            raise self._refused(name, "has numbers that become infinite or NaN, or stop being so")
        return change

    def _drawn(self, name: str, draws: Draws, change: torch.Tensor) -> torch.Tensor:
        """Return the change to send for a buffer that is drawn at random, equal on all workers.

        It replaces this worker's own change, which depends on the worker's random numbers.

        Args:
            name: Name of the buffer.
            draws: Computes changes whose random numbers are the same on all workers.
            change: This worker's change; only its shape and dtype are used.
        """
        drawn = draws(0).get(name)
        return torch.zeros_like(change) if drawn is None else self._finite(name, drawn)

    def _learn(self, name: str, parts: BatchParts, draws: Draws) -> None:
        known = self._reductions.get(name)
        way = _find_reduction(parts.of(name), parts.sizes, self._buffers.tensors()[name], known)
        known = known or way
        if way in _LIKE_DRAWS and _are_close(parts.of(name)):
            if _are_close([draws(0, (at, at)).get(name) for at in (0, -1)]):
                is_drawn = not _are_close([draws(seed).get(name) for seed in (0, 1)])
                if is_drawn or known is Reduction.DRAW:
                    known = way = Reduction.DRAW
            elif way is Reduction.MEAN:
                self._check_is_mean(name, draws)
        if known is Reduction.DRAW and way is Reduction.MEAN:
            # Examples that are alike have hidden that it depends on them.
            known = way
        if way is None or known is not way:
            raise self._refused(name, _NEITHER)
        if way is Reduction.SUM and name not in self._reductions:
            self._check_counts(name, parts)
        self._reductions[name] = way
        self._num_comparisons[name] = self._num_comparisons.get(name, 0) + 1

    def _check_is_mean(self, name: str, draws: Draws) -> None:
        """Check that a change of a buffer is a mean over the examples.

        Called if both parts of a batch change the buffer by the same amount, but single examples
        change it by different amounts. It may be a mean then, or something else, such as the sign
        of a mean. Two examples are run in both orders, because random numbers may differ by row.

        Raises:
            DefinitionError: The change that two examples make together is not the mean of the
                changes that each makes alone.
        """
        values = self._buffers.tensors()[name]
        zeros = torch.zeros_like(values)
        pairs = (0, 0), (-1, -1), (0, -1), (-1, 0)
        first, last, *both = (draws(0, pair).get(name, zeros) for pair in pairs)
        if not _are_near(first + last, both[0] + both[1], values):
            raise self._refused(name, _NEITHER)

    def _compare_again(self, name: str, parts: BatchParts, step: int) -> None:
        """Warn once if a batch's changes to a buffer no longer fit the buffer's known `Reduction`.

        Args:
            name: Name of the buffer.
            parts: The changes that the batch and its parts make.
            step: Number of the step, for the warning.
        """
        values, way = self._buffers.tensors()[name], self._reductions[name]
        zeros = values.new_zeros(
            values.shape, dtype=None if values.is_floating_point() else torch.int64
        )
        whole, first, last = (zeros if change is None else change for change in parts.of(name))
        expected = {
            Reduction.MEAN: [_mean(first, last, parts.sizes)],
            Reduction.SUM: [first + last],
            Reduction.STEP: [first, last],
            # Each update compares the draws of its workers.
            Reduction.DRAW: [],
        }[way]
        if all(_are_near(whole, change, values) for change in expected):
            return
        self._settled.add(name)
        _log.warning(
            "%s: since step %d at the latest, the model's buffer %s no longer behaves like a %s "
            "over examples. Its update is the %s of the minibatches' updates, so the numbers "
            "differ from those of one process. If this is not meant, train in one process without "
            "--global_batch_size, or let forward only count or average what the change is computed "
            "from, in another buffer, and change this one in a pre-hook of the optimizer's step.",
            self._origin,
            step,
            name,
            "sum" if way is Reduction.SUM else "mean",
            "sum" if way is Reduction.SUM else "mean",
        )

    def _check_counts(self, name: str, parts: BatchParts) -> None:
        """Check that a change that is summed over batches does not depend on the buffer's value.

        Raises:
            DefinitionError: The change depends on the value: a position in a ring buffer, or a
                count with a limit.
        """
        tensor, change = self._buffers.tensors()[name], parts.whole[name]
        for shift in _SHIFTS:
            if not has_room(tensor.dtype, shift):
                continue
            again = parts.again(shift).get(name)
            rounding = 0.0
            if tensor.is_floating_point():
                held = float(tensor.abs().max()) + shift
                rounding = 4 * torch.finfo(tensor.dtype).eps * held
            if again is None or not torch.allclose(
                again.double(), change.double(), rtol=1e-4, atol=rounding
            ):
                raise self._refused(
                    name,
                    "changes by a number that depends on its value (a position in a ring buffer, "
                    "or a count with a limit)",
                )

    def _refused(self, name: str, what: str) -> DefinitionError:
        return DefinitionError(
            f"{self._origin}: the model's buffer {name} {what}, so the changes by several batches "
            "cannot be added up. Such a model can only be trained in a single process and without "
            "--global_batch_size."
        )

    def _disagree(self, name: str) -> DefinitionError:
        return DefinitionError(
            f"{self._origin}: the model's buffer {name} was changed by some batches of an update "
            "and not, or differently, by others: it counts neither steps nor examples"
            f"{_DRAWS_DIFFER if self._reductions.get(name) is Reduction.DRAW else ''}. It trains "
            "in one process without --global_batch_size."
        )


def has_room(dtype: torch.dtype, shift: int) -> bool:
    """Return whether `shift` can be added to values of a dtype without overflow or rounding.

    For the test of whether a buffer's change depends on its value; see `BatchParts.again`.
    """
    if dtype.is_floating_point:
        return shift * torch.finfo(dtype).eps < _ROUNDED
    return dtype is not torch.bool and shift < torch.iinfo(dtype).max // 2


def change_of(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor | None:
    """Return the change of a buffer; None if it is unchanged.

    Returns:
        An int64 tensor for integers; otherwise float64 or float32. It is 0 where both values are
        the same, even if they are NaN or infinite.
    """
    if after.layout != torch.strided:
        before, after = before.to_dense(), after.to_dense()
    if torch.equal(before, after):
        return None
    if not after.is_floating_point():
        return after.to(torch.int64) - before.to(torch.int64)
    wide = torch.promote_types(after.dtype, torch.float32)
    one, other = before.to(wide), after.detach().to(wide)
    same = (one == other) | (one.isnan() & other.isnan())
    if bool(same.all()):
        return None
    return torch.where(same, 0.0, other - one)


def _find_reduction(
    changes: _Changes, sizes: tuple[int, int], values: torch.Tensor, known: Reduction | None
) -> Reduction | None:
    """Return the `Reduction` that combines the changes of a batch's parts; None if none fits.

    Args:
        changes: The changes that the batch, its first part and the rest make.
        sizes: Number of examples in the two parts.
        values: The values of the buffer. If they are large beside the change, its rounding error is
            large, and several `Reduction`s may fit.
        known: The `Reduction` that earlier comparisons have found; it is preferred if several fit.
            None if there were no comparisons.
    """
    whole, first, last = changes
    if whole is None or first is None or last is None:
        # One part may change nothing: a count of tokens when the part has none.
        if whole is None:
            return None
        first = torch.zeros_like(whole) if first is None else first
        last = torch.zeros_like(whole) if last is None else last
    if not whole.is_floating_point():
        if torch.equal(first, last) and torch.equal(first, whole):
            return Reduction.STEP
        return Reduction.SUM if torch.equal(first + last, whole) else None
    expected = {Reduction.MEAN: _mean(first, last, sizes), Reduction.SUM: first + last}
    for way, change in expected.items():
        if _close(change, whole):
            return way
    # The values of a settled running mean are large beside its change.
    rounding = _rounding(values)
    near = [way for way, change in expected.items() if _close(change, whole, rounding=rounding)]
    if known in near:
        return known
    return near[0] if len(near) == 1 else None


def _mean(first: torch.Tensor, last: torch.Tensor, sizes: tuple[int, int]) -> torch.Tensor:
    return (first * sizes[0] + last * sizes[1]) / sum(sizes)


def _are_close(changes: Sequence[torch.Tensor | None]) -> bool:
    found = [change for change in changes if change is not None]
    if len(found) < len(changes):
        return not found
    return all(_close(found[0], other) for other in found[1:])


def _fingerprint(change: torch.Tensor) -> float:
    """Return a number computed from all values of a change, to compare workers' changes.

    Its absolute value is between 0.5 and 1, or 0 if all values are 0. Rounding affects it little,
    so it is nearly equal on machines whose results differ in the last bits.
    """
    flat = change.reshape(-1).double()
    weights = torch.cos(torch.arange(flat.numel(), dtype=torch.float64, device=flat.device))
    return float(torch.frexp(flat @ weights).mantissa)


def _are_same(sums: Sequence[float], num_contributions: int) -> bool:
    """Return whether all workers have sent the same change, by their fingerprints.

    Args:
        sums: The sum of all fingerprints, and the sum of their squares. If the fingerprints are
            equal, their variance is 0.
        num_contributions: Number of fingerprints.
    """
    total, squares = sums
    mean = total / num_contributions
    return squares / num_contributions - mean * mean <= _SAME_VARIANCE


def _close(
    one: torch.Tensor,
    other: torch.Tensor,
    tolerance: float = 1e-4,
    rounding: torch.Tensor | float = 0.0,
) -> bool:
    largest = torch.maximum(one.abs().max(), other.abs().max())
    return bool(((one - other).abs() <= tolerance * largest + rounding).all())


def _are_near(one: torch.Tensor, other: torch.Tensor, values: torch.Tensor) -> bool:
    """Return whether two changes of a buffer are equal up to rounding error.

    Args:
        one: A change of the buffer.
        other: Another change of it.
        values: Values of the buffer, which determine how large rounding errors can be.
    """
    if not values.is_floating_point():
        return torch.equal(one, other)
    return _close(one, other, _TOLERANCE, _rounding(values))


def _rounding(values: torch.Tensor) -> torch.Tensor:
    """Return a bound on the rounding error of an update to each value of a buffer."""
    eps = max(torch.finfo(dtype).eps for dtype in (values.dtype, torch.float32))
    return _NUM_ROUNDINGS * eps * values.double().abs().nan_to_num()


def _width(tensor: torch.Tensor) -> int:
    """Return how many float32 values encode one value of a tensor; 0 if the tensor is not sent."""
    if tensor.layout != torch.strided:
        # It would be dense in each sum, and usually is the constant adjacency of a graph.
        return 0
    if tensor.is_floating_point():
        return _FLOAT64_PARTS if tensor.dtype == torch.float64 else 1
    if tensor.numel() > _MAX_WHOLE_NUMBERS:
        return 0
    return max(1, tensor.element_size() * 8 // _DIGIT_BITS)


def _encoded(change: torch.Tensor, width: int) -> torch.Tensor:
    flat = change.reshape(-1)
    if flat.is_floating_point():
        if width == 1:
            return flat.float()
        # A high part of 12 bits, so that sums of several are exact: each part is added separately.
        high = (flat.float().view(torch.int32) & _HIGH_BITS).view(torch.float32)
        return torch.cat([high, (flat - high).float()])
    digits: Sequence[torch.Tensor] = []
    for _ in range(width):
        digit = ((flat + _HALF_DIGIT) & ((1 << _DIGIT_BITS) - 1)) - _HALF_DIGIT
        flat = (flat - digit) >> _DIGIT_BITS
        digits = [*digits, digit.float()]
    return torch.cat(list(digits))
