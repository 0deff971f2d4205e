"""Encodes the changes of statistics as numbers that can be summed over workers.

Statistics are variables that training changes without a gradient: BatchNorm's running mean and
variance, the user's counters, and trained weights that a call of the model sets
(`moved_weights.py`), which count as means. Each batch starts from the same values, so workers send
changes:

    kind              such as                     sent by a worker            applied
    mean              running mean, steps so far  change * num_examples       sum / num_examples
    sum               examples or tokens so far   change                      sum
    whole number      counters of either kind     change, in exact parts      as a mean or a sum
    boolean           "was seen"                  the new value               if all agree

Whether a variable is a mean or a sum is determined on the first batch that changes it: the changes
of its two halves are compared with that of the whole. Each worker sends its result, as flags, along
with its changes, because a worker whose batches never changed a variable cannot determine it. A
variable that is drawn at random, independently of the examples, is neither: it is rejected by name.

Some later batches are compared again (`repeated_checks.py`). A difference is then a warning, and
the flags stay as they are, so workers need not agree about it.

Callers: `trainer.py`, `model_calls.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from elasticdl.errors import DefinitionError, TrainingError

if TYPE_CHECKING:
    from elasticdl.definition import Origin

_log = logging.getLogger("elasticdl")

# Number of examples, number of batches.
_NUM_COUNTS = 2
# float32 adds whole numbers exactly up to 2**24: therefore parts of 12 bits, from up to 4,096
# workers.
_FLOAT64_PARTS = 4
_PART_BITS = 16
# Equal whole numbers have equal remainders; the sum of their squares shows it exactly up to 256
# workers.
_MODULUS = 251
_MAX_COMPARED = 256
# Shifts that reveal a change that depends on the value: below and above the sizes of ring buffers.
_SHIFTS = (1, 1000, 65_521)
_ROUNDED = 1e-2
# For later comparisons: a settled statistic changes little, so the order in which its examples are
# summed counts more than at first. A change that is not a mean differs by more.
_TOLERANCE = 0.02
# Roundings of a value in a step and in a comparison, in units of its last place.
_NUM_ROUNDINGS = 8

_Kind: TypeAlias = Literal["float", "float64", "whole", "boolean"]
Changes: TypeAlias = "Sequence[np.ndarray[Any, Any]]"


class ChangesOf(Protocol):
    """Function that computes how calling the model on some examples changes each statistic."""

    def __call__(self, rows: Sequence[int], seed: int = 0) -> Changes:
        """Return each variable's change, int64 or float64, when the model is called on `rows`.

        Args:
            rows: Indices of the examples in the batch; one may be repeated.
            seed: Determines the random numbers of the call.
        """
        ...


@dataclass(frozen=True, eq=False)
class _Statistic:
    """A variable that steps change without gradients, and the position of its change in a block.

    A block is the flat float32 array that a worker sends: the changes of all such variables.

    Attributes:
        variable: A Keras variable.
        kind: Determines how its change is encoded.
        first: Index of its first number in the block.
        size: Number of elements of the variable.
    """

    variable: Any
    kind: _Kind
    first: int
    size: int

    @property
    def num_parts(self) -> int:
        """Number of float32 values that encode the change of one element of the variable."""
        return {"float": 1, "float64": _FLOAT64_PARTS, "whole": 4, "boolean": 1}[self.kind]


class KerasStatistics:
    """The statistics of one model: encodes their changes as summable numbers, and applies sums.

    Each is a mean over examples, a sum over them, or a boolean; the module docstring describes the
    encoding.

    Args:
        variables: The non-trainable variables, except random seeds, and trained weights that a
            call of the model sets.
        means: Ids of the variables that are known to be means (BatchNorm's and those weights).
        origin: Where the model came from, for errors.

    Attributes:
        variables: The variables, in the order in which their changes are sent.
        size: Number of float32 values in a block, the encoded changes of a batch.
    """

    def __init__(self, variables: Sequence[Any], means: set[int], origin: Origin) -> None:
        self._origin = origin
        self.variables = list(variables)
        self._statistics: list[_Statistic] = []
        first = _NUM_COUNTS + 2 * len(variables)
        for variable in variables:
            size = int(np.prod(variable.shape))
            made = _Statistic(variable, _kind_of(variable, origin), first, size)
            self._statistics.append(made)
            first += size * made.num_parts
        self.size = first
        # Variables, so that a compiled step need not be recompiled when their kinds are determined.
        self._known_at_first = np.array(
            [id(each.variable) in means or each.kind == "boolean" for each in self._statistics],
            bool,
        )
        self._is_known = tf.Variable(self._known_at_first, trainable=False)
        self._is_sum = tf.Variable(np.zeros(len(variables), bool), trainable=False)
        # Not compared again: those of BatchNorm, booleans, and those that were reported.
        self._settled = self._known_at_first.copy()

    @property
    def own_variables(self) -> list[tf.Variable]:
        """Two boolean vectors with an entry for each statistic: is it classified, and is it a sum?

        Compiled steps read them. A statistic is classified once it is known to be a mean or a sum.
        """
        return [self._is_known, self._is_sum]

    # --- in a compiled step -------------------------------------------------------------------

    def copies(self) -> list[tf.Tensor]:
        """Return copies of the statistics' present values, to pass to `take_changes`."""
        return [tf.identity(each.variable.value) for each in self._statistics]

    def take_changes(self, before: Sequence[tf.Tensor], num_examples: tf.Tensor) -> tf.Tensor:
        """Encode the changes of the variables as a block, a float32 vector, and undo the changes.

        Args:
            before: The values to start from and to restore, which `copies` returned before the
                batch.
            num_examples: Number of examples in the batch, a float32 scalar.

        Returns:
            float32 [size].
        """
        known = tf.convert_to_tensor(self._is_known)
        sums = tf.convert_to_tensor(self._is_sum)
        votes = tf.stack([known & ~sums, known & sums], axis=1)
        parts = [
            tf.stack([num_examples, tf.constant(1.0)]),
            tf.cast(tf.reshape(votes, [-1]), tf.float32),
        ]
        for number, (each, old) in enumerate(zip(self._statistics, before, strict=True)):
            new = tf.identity(each.variable.value)
            weight = tf.where(sums[number], tf.constant(1.0), num_examples)
            parts.append(tf.reshape(_sent(each.kind, old, new, weight), [-1]))
            each.variable.assign(old)
        return tf.concat(parts, 0)

    def add_means_and_sums(self, block: tf.Tensor) -> None:
        """Apply the changes of all floating-point variables.

        Args:
            block: The sum of the blocks of all batches of the update.
        """
        num_examples = block[0]
        for number, each in enumerate(self._statistics):
            if each.kind not in {"float", "float64"}:
                continue
            dtype = tf.float64 if each.kind == "float64" else tf.float32
            is_sum = block[_NUM_COUNTS + 2 * number + 1] > 0
            part = block[each.first : each.first + each.size * each.num_parts]
            total = tf.reduce_sum(
                tf.cast(tf.reshape(part, [each.num_parts, each.size]), dtype), axis=0
            )
            divisor = tf.where(is_sum, tf.ones([], dtype), tf.cast(num_examples, dtype))
            change = tf.reshape(total / divisor, each.variable.shape)
            # Added in the wider type, because a sum in bfloat16 would round the change first.
            summed = tf.cast(each.variable.value, dtype) + change
            each.variable.assign(tf.cast(summed, each.variable.dtype))

    # --- between steps ------------------------------------------------------------------------

    def must_be_classified(self, block: np.ndarray[Any, Any]) -> bool:
        """Return whether a variable changed that is not yet classified as a mean or a sum.

        Args:
            block: The changes of a batch, from `take_changes`.
        """
        is_known = self._is_known.numpy()
        return any(
            not is_known[number] and np.any(self._part(each, block))
            for number, each in enumerate(self._statistics)
        )

    def classify(self, num_examples: int, changes: ChangesOf) -> None:
        """Classify each variable that changes as a mean or a sum over examples.

        A floating-point variable that is neither is treated as a mean, with a warning.

        Args:
            num_examples: Number of examples in the batch.
            changes: Function (positions of examples in the batch, seed) -> changes that they make.

        Raises:
            DefinitionError: An integer variable is neither, or a variable is drawn at random.
        """
        whole, one, other, share = _by_halves(num_examples, changes)
        is_known, is_sum = self._is_known.numpy(), self._is_sum.numpy()
        for number, each in enumerate(self._statistics):
            if is_known[number] or not np.any(whole[number]):
                continue
            a, b, c = one[number], other[number], whole[number]
            adds_up = np.allclose(a + b, c, rtol=1e-4, atol=0)
            averages = np.allclose(share * a + (1 - share) * b, c, rtol=1e-4, atol=1e-7)
            if (
                each.kind == "whole"
                and not adds_up
                and not (np.array_equal(a, c) and np.array_equal(b, c))
            ):
                raise DefinitionError(
                    f"{self._origin}: the integer variable {each.variable.path} changes by "
                    f"{_few(c)} on a batch, and by {_few(a)} and {_few(b)} on its halves. It "
                    "counts neither steps nor examples, so the changes of several workers or "
                    "minibatches cannot be combined. Train in one process without "
                    "--global_batch_size, or do not make it a variable of the model."
                )
            if np.allclose(a, c, rtol=1e-4, atol=0) and np.allclose(b, c, rtol=1e-4, atol=0):
                self._check_not_drawn(number, changes)
                averages = averages and self._is_mean_of_examples(number, changes)
            is_known[number], is_sum[number] = True, adds_up and not averages
            if each.kind != "whole" and not adds_up and not averages:
                self._warn_of_neither(number)
        new = [number for number, found in enumerate(is_sum & ~self._is_sum.numpy()) if found]
        for number, counts in zip(
            new, self._are_counters(new, whole, _all_rows(num_examples), changes), strict=True
        ):
            each = self._statistics[number]
            if counts:
                continue
            if each.kind == "whole":
                raise DefinitionError(
                    f"{self._origin}: how much the integer variable {each.variable.path} changes "
                    "on a batch depends on its value, as for a position in a ring buffer, or a "
                    "number with a limit. So the changes of several workers or minibatches cannot "
                    "be combined. Train in one process without --global_batch_size, or count "
                    "without a limit and apply it where the number is used."
                )
            is_sum[number] = False
            self._warn_of_neither(number)
        self._is_known.assign(is_known)
        self._is_sum.assign(is_sum)

    def can_be_compared(self, block: np.ndarray[Any, Any]) -> bool:
        """Return whether a batch changed a variable that `compare_again` checks.

        Args:
            block: The changes of a batch, from `take_changes`.
        """
        return any(
            not self._settled[number] and np.any(self._part(each, block))
            for number, each in enumerate(self._statistics)
        )

    def compare_again(self, num_examples: int, changes: ChangesOf, step: int) -> None:
        """Warn of variables whose changes on this batch contradict their classification.

        Args:
            num_examples: Number of examples in the batch.
            changes: Function (positions of examples in the batch, seed) -> changes that they make.
            step: Number of updates so far.
        """
        whole, one, other, share = _by_halves(num_examples, changes)
        is_known, is_sum = self._is_known.numpy(), self._is_sum.numpy()
        for number, each in enumerate(self._statistics):
            if self._settled[number] or not is_known[number]:
                continue
            a, b, c = one[number], other[number], whole[number]
            if is_sum[number]:
                fits = self._are_near(number, a + b, c)
            elif each.kind == "whole":
                fits = np.array_equal(a, c) and np.array_equal(b, c)
            else:
                fits = self._are_near(number, share * a + (1 - share) * b, c)
            if fits:
                continue
            self._settled[number] = True
            _log.warning(
                "%s: since step %d at the latest, %s no longer behaves like a %s over examples. "
                "Its update is the %s of the minibatches' updates, so the numbers differ from "
                "those of one process. If this is not meant, train in one process without "
                "--global_batch_size.",
                self._origin,
                step,
                each.variable.path,
                "sum" if is_sum[number] else "mean",
                "sum" if is_sum[number] else "mean",
            )

    def forget(self) -> None:
        """Forget which variables were found to be means or sums; a later batch decides again.

        What is known from the start is kept: the `means` of the constructor, and booleans.
        """
        self._is_known.assign(self._known_at_first)
        self._is_sum.assign(np.zeros_like(self._known_at_first))
        self._settled = self._known_at_first.copy()

    def _check_not_drawn(self, number: int, changes: ChangesOf) -> None:
        """Check that a variable is not drawn at random, independently of the examples.

        Args:
            number: Index of the variable; all parts of the batch changed it by the same amount.
            changes: Function (positions of examples in the batch, seed) -> changes that they make.

        Raises:
            DefinitionError: The change depends on the seed, and not on the examples.
        """
        first, last = changes((0, 0))[number], changes((-1, -1))[number]
        other = changes((0, 0), seed=1)[number]
        if not np.allclose(first, last, rtol=1e-4, atol=0):
            return
        if not np.allclose(first, other, rtol=1e-4, atol=0):
            raise DefinitionError(
                f"{self._origin}: the variable {self._statistics[number].variable.path} is drawn "
                "at random in a step. Each worker or minibatch would draw another value, and "
                "their mean has another distribution. Draw it by tf.random.stateless_normal or "
                "its like, with a seed that is computed from a variable that counts steps, or in a "
                "callback, or train in one process without --global_batch_size."
            )

    def _is_mean_of_examples(self, number: int, changes: ChangesOf) -> bool:
        """Return whether two examples change a variable by the mean of their separate changes.

        Identical changes on all parts of a batch do not prove this: the sign of a mean is often the
        same for all parts. The pair is run in both orders, because random masks differ by position.

        Args:
            number: Index of the variable.
            changes: Function (positions of examples in the batch, seed) -> changes that they make.
        """
        pairs = (0, 0), (-1, -1), (0, -1), (-1, 0)
        first, last, *both = (changes(pair)[number] for pair in pairs)
        return self._are_near(number, first + last, both[0] + both[1])

    def _are_near(
        self, number: int, one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]
    ) -> bool:
        """Return whether two changes of variable `number` are equal up to rounding error."""
        each = self._statistics[number]
        if each.kind == "whole":
            return np.array_equal(one, other)
        values = np.array(each.variable)
        eps = max(_eps(values.dtype), float(np.finfo(np.float32).eps))
        rounding = _NUM_ROUNDINGS * eps * np.nan_to_num(np.abs(values.astype(np.float64)))
        largest = max(np.abs(one).max(initial=0.0), np.abs(other).max(initial=0.0))
        with np.errstate(invalid="ignore"):
            near = np.abs(one - other) <= _TOLERANCE * largest + rounding
        return bool(np.all(near | (one == other)))

    def _warn_of_neither(self, number: int) -> None:
        self._settled[number] = True
        _log.warning(
            "%s: %s changes neither like a mean nor like a sum over examples. On several workers "
            "its change is the mean of the changes on their batches.",
            self._origin,
            self._statistics[number].variable.path,
        )

    def _are_counters(
        self,
        numbers: Sequence[int],
        whole: Changes,
        all_rows: Sequence[int],
        changes: ChangesOf,
    ) -> list[bool]:
        """Return for each given variable whether its change is independent of its value.

        This holds for a counter, not for a moving average (whose first change, from 0, also adds up
        over examples), a position in a ring buffer or a number with a limit. Each variable is
        therefore increased by several amounts, and the change is computed again.

        Args:
            numbers: Indices of the variables.
            whole: The changes of all variables that the batch makes.
            all_rows: Indices of the batch's examples.
            changes: Function (positions of examples in the batch, seed) -> changes that they make.
        """
        are_counters = [True] * len(numbers)
        before = [np.array(self._statistics[number].variable) for number in numbers]
        try:
            for shift in _SHIFTS if numbers else ():
                for number, old in zip(numbers, before, strict=True):
                    if _has_room(old.dtype, shift):
                        self._statistics[number].variable.assign(old + old.dtype.type(shift))
                again = changes(all_rows)
                for at, number in enumerate(numbers):
                    same = np.allclose(
                        again[number], whole[number], rtol=1e-4, atol=_rounding(before[at], shift)
                    )
                    are_counters[at] = are_counters[at] and bool(same)
        finally:
            for number, old in zip(numbers, before, strict=True):
                self._statistics[number].variable.assign(old)
        return are_counters

    def check_finite(self, block: np.ndarray[Any, Any]) -> None:
        """Reject changes of a variable that already held infinity or NaN: they cannot be summed.

        Args:
            block: The changes of a batch, from `take_changes`.

        Raises:
            DefinitionError: There is such a change.
        """
        if np.isfinite(block).all():
            return
        for each in self._statistics:
            old = np.array(each.variable).astype(np.float64)
            if not np.isfinite(self._part(each, block)).all() and not np.isfinite(old).all():
                raise DefinitionError(
                    f"{self._origin}: {each.variable.path} holds NaN or infinity, and a step "
                    "changes these values. Then the changes of several workers or minibatches "
                    "cannot be summed. Initialize it with a finite value, or train in one process "
                    "without --global_batch_size."
                )

    def add_whole_numbers(self, block: np.ndarray[Any, Any]) -> None:
        """Apply the changes of all integer and boolean variables.

        Args:
            block: The sum of the blocks of all batches of the update.

        Raises:
            TrainingError: Batches changed a boolean, or an integer that counts steps, differently;
                or workers disagree on whether a variable is a mean or a sum.
        """
        num_batches = round(float(block[1]))
        for number, each in enumerate(self._statistics):
            means, sums = block[_NUM_COUNTS + 2 * number : _NUM_COUNTS + 2 * number + 2]
            if means > 0 and sums > 0:
                self._disagree(each, "is a mean on some batches and a sum on others")
            if each.kind == "boolean":
                count = self._part(each, block)
                if not np.all((count == 0) | (count == num_batches)):
                    self._disagree(each, "became true on some batches and false on others")
                each.variable.assign((count > 0).reshape(each.variable.shape))
            if each.kind == "whole":
                change = self._whole_change(each, block, num_batches, is_sum=bool(sums > 0))
                if np.any(change):
                    summed = np.array(each.variable).astype(np.int64) + change
                    each.variable.assign(summed.astype(each.variable.dtype))

    def mean_changes(self, block: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """Decode a sum of blocks: return the change that an update makes to each variable.

        For a mean this is the mean of the batches' changes, for a sum their sum.
        """
        num_batches = round(float(block[1]))
        found: list[np.ndarray[Any, Any]] = []
        for number, each in enumerate(self._statistics):
            is_sum = bool(block[_NUM_COUNTS + 2 * number + 1] > 0)
            if each.kind == "whole":
                found.append(self._whole_change(each, block, num_batches, is_sum=is_sum))
                continue
            part = self._part(each, block).reshape(each.num_parts, each.size).astype(np.float64)
            if each.kind == "boolean":
                new = (part[0] > 0).reshape(each.variable.shape)
                found.append(new ^ np.array(each.variable))
                continue
            change = part.sum(axis=0) / (1.0 if is_sum else float(block[0]))
            dtype = np.float64 if each.kind == "float64" else np.float32
            found.append(change.reshape(each.variable.shape).astype(dtype))
        return found

    def _whole_change(
        self, each: _Statistic, block: np.ndarray[Any, Any], num_batches: int, *, is_sum: bool
    ) -> np.ndarray[Any, Any]:
        parts = self._part(each, block).astype(np.float64).reshape(4, each.size)
        low, high, rest, squares = (np.round(part).astype(np.int64) for part in parts)
        total = (high << _PART_BITS) + low
        if not is_sum:
            differ = np.any(total % num_batches != 0) or (
                num_batches <= _MAX_COMPARED and np.any(num_batches * squares != rest * rest)
            )
            if differ:
                self._disagree(each, "counts steps, but changed by other numbers on some batches")
            total = total // num_batches
        return total.reshape(each.variable.shape)

    def _part(self, each: _Statistic, block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return block[each.first : each.first + each.size * each.num_parts]

    def _disagree(self, each: _Statistic, what: str) -> None:
        raise TrainingError(
            f"{self._origin}: the variable {each.variable.path} {what} of one update. Its value "
            "would differ from that of a single process. Train in one process without "
            "--global_batch_size, or do not make it a variable of the model."
        )


def _all_rows(num_examples: int) -> Sequence[int]:
    """Return the indices of a batch's examples; (0, 0) for one example, so it has two halves."""
    return range(num_examples) if num_examples > 1 else (0, 0)


def _by_halves(num_examples: int, changes: ChangesOf) -> tuple[Changes, Changes, Changes, float]:
    """Return how the whole batch, its first half and its second half change the variables.

    The last value returned is the share of examples in the first half.
    """
    rows = _all_rows(num_examples)
    half = len(rows) // 2
    return changes(rows), changes(rows[:half]), changes(rows[half:]), half / len(rows)


def _has_room(dtype: np.dtype[Any], shift: int) -> bool:
    """Return whether numbers of a type can grow by `shift` without overflow or much rounding.

    Otherwise `_are_counters` does not test a variable with this shift.
    """
    if np.issubdtype(dtype, np.integer):
        return bool(shift < np.iinfo(dtype).max // 2)
    return shift * _eps(dtype) < _ROUNDED


def _rounding(old: np.ndarray[Any, Any], shift: int) -> float:
    """Return an upper bound on the rounding error when a change is measured from `old + shift`.

    `_are_counters` adds `shift` to a variable and measures again how a batch changes it. A rounding
    error is proportional to the value, so it grows with the shift. Integers are not rounded.

    Args:
        old: The variable's original value.
        shift: The number that was added to it for the test.
    """
    if np.issubdtype(old.dtype, np.integer):
        return 0.0
    largest = float(np.abs(old.astype(np.float64)).max(initial=0.0)) + shift
    return 4 * _eps(old.dtype) * largest


def _eps(dtype: np.dtype[Any]) -> float:
    # NumPy has no finfo for bfloat16.
    return float(np.finfo(dtype).eps) if np.issubdtype(dtype, np.floating) else 2.0**-7


def means_of(model: keras.Model) -> set[int]:
    """Return the ids of the variables that are known to be means: those of BatchNorm."""
    return {
        id(variable)
        for layer in model._flatten_layers()  # noqa: SLF001 - Keras has no public name
        if isinstance(layer, keras.layers.BatchNormalization)
        for variable in layer.non_trainable_variables
    }


def change_of(old: Any, new: Any) -> np.ndarray[Any, Any]:
    """Return the change of a variable as int64 or float64."""
    before, after = np.array(old), np.array(new)
    dtype = np.int64 if before.dtype.kind in "iub" else np.float64
    return after.astype(dtype) - before.astype(dtype)


def _kind_of(variable: Any, origin: Origin) -> _Kind:
    # NumPy treats bfloat16 as a void type, and testing for names that begin with "float" misses it.
    dtype = keras.backend.standardize_dtype(variable.dtype)
    if dtype == "float64":
        return "float64"
    if keras.backend.is_float_dtype(dtype):
        return "float"
    if dtype == "bool":
        return "boolean"
    if keras.backend.is_int_dtype(dtype):
        return "whole"
    raise DefinitionError(
        f"{origin}: the variable {variable.path} is of type {dtype}; a model's variables hold "
        "floating-point numbers, whole numbers or booleans."
    )


def _sent(kind: _Kind, old: tf.Tensor, new: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Encode a variable's change as float32 numbers that can be summed over workers.

    Args:
        kind: How it is encoded.
        old: Value before the batch.
        new: Value after it.
        weight: Factor for a change of a floating-point variable: the number of examples for a mean.

    Returns:
        float32, of the variable's shape; if a value is sent in parts, these are along a new first
        axis.
    """
    if kind == "boolean":
        return tf.cast(new, tf.float32)
    if kind == "whole":
        change = tf.cast(new, tf.int64) - tf.cast(old, tf.int64)
        rest = tf.math.floormod(change, _MODULUS)
        low = tf.bitwise.bitwise_and(change, 2**_PART_BITS - 1)
        high = tf.bitwise.right_shift(change, tf.constant(_PART_BITS, tf.int64))
        return tf.cast(tf.stack([low, high, rest, rest * rest]), tf.float32)
    dtype = tf.float64 if kind == "float64" else tf.float32
    before, after = tf.cast(old, dtype), tf.cast(new, dtype)
    # Equal values count as unchanged: an attention mask may hold -inf, and -inf - -inf is NaN.
    is_same = tf.equal(before, after) | (tf.math.is_nan(before) & tf.math.is_nan(after))
    change = tf.where(is_same, tf.zeros([], dtype), after - before) * tf.cast(weight, dtype)
    return _in_parts(change) if kind == "float64" else change


def _in_parts(number: tf.Tensor) -> tf.Tensor:
    """Split float64 values into float32 parts of 12 bits, so that sums of parts are exact.

    Returns:
        float32, the parts along a new first axis, the largest first; their sum is `number`.
    """
    parts = []
    for _ in range(_FLOAT64_PARTS):
        bits = tf.bitcast(tf.cast(number, tf.float32), tf.int32)
        part = tf.bitcast(tf.bitwise.bitwise_and(bits, tf.constant(-(2**12), tf.int32)), tf.float32)
        parts.append(part)
        number -= tf.cast(part, tf.float64)
    return tf.stack(parts)


def _few(array: np.ndarray[Any, Any]) -> str:
    flat = array.reshape(-1)
    return f"{flat[0]}" if flat.size == 1 else f"{flat[:4].tolist()}{'...' * (flat.size > 4)}"  # noqa: PLR2004
