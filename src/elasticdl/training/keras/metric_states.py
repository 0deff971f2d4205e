"""States of Keras metrics: summed over batches if possible, else carried from batch to batch.

A batch's share of a metric is the value of the metric's variables after `reset_state` and one
update. Shares can be summed for all of Keras' own metrics. Others are tested on two batches:

    update(A) + update(B)  =  update(A); update(B)      and     2 update(A)  =  update(A); update(A)

A maximum fails. So does a state that starts at a value other than 0. A variable that neither batch
changes proves nothing (the recall of a batch without a positive). States without a proof are
*carried*: each batch continues from the states after the previous batch, which is correct for any
metric, but only in one process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from elasticdl.errors import CheckpointMismatchError, DefinitionError

if TYPE_CHECKING:
    from elasticdl.training.trainer import MetricStates

Values = list[np.ndarray[Any, Any]]

_TOLERANCE = 1e-4
# These metrics are not tested at run time: unit tests check that their states add up. Numbers in
# them that change with each update are only settings that they look up.
_KERAS_OWN = ("keras.src.metrics.", "keras.metrics.")


class MetricVariables:
    """Reads and sets the states of metrics, and tests whether they can be summed over batches.

    Args:
        members: Name of each metric, as in the states -> the metric.
        where: The user's `file:line`, for errors.

    Attributes:
        members: The argument `members`.
        ordered: Names of metrics whose states are carried from batch to batch, not summed.
        unproved: Names of metrics for which no batch has shown yet whether states can be summed.
        failures: Name of a metric whose states cannot be summed -> the difference that was found.
    """

    def __init__(self, members: Mapping[str, keras.metrics.Metric], where: str) -> None:
        self.members = dict(members)
        self.where = where
        self.unproved = {name for name, one in self.members.items() if not _is_of_keras(one)}
        self.failures: dict[str, str] = {}
        self._must_add_up = ""

    @property
    def ordered(self) -> frozenset[str]:
        """Names of metrics whose states are carried from batch to batch, not summed."""
        if self._must_add_up:
            return frozenset()
        return frozenset({*self.unproved, *self.failures})

    # --- in a compiled step -----------------------------------------------------------------

    def begin(self) -> None:
        """Reset the metrics whose states are summed, so that the step computes its batch's share.

        Runs within a compiled step, before the model.
        """
        ordered = self.ordered
        for name, metric in self.members.items():
            if name not in ordered:
                metric.reset_state()

    def shares(self) -> dict[str, tuple[tf.Tensor, ...]]:
        """Return name of the metric -> its states for this batch alone.

        Runs within a compiled step. Metrics whose states are carried (`ordered`) are left out.
        """
        ordered = self.ordered
        return {
            name: tuple(tf.identity(variable.value) for variable in metric.variables)
            for name, metric in self.members.items()
            if name not in ordered
        }

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Context manager that restores all metrics after its block; runs in a compiled step.

        For additional calls of user code, such as `compute_loss`, that may update metrics.
        """
        variables = [variable for one in self.members.values() for variable in one.variables]
        values = [tf.identity(variable.value) for variable in variables]
        yield
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    # --- around it --------------------------------------------------------------------------

    def resume(self, so_far: MetricStates | None) -> None:
        """Load the states of the metrics that continue from batch to batch (`ordered`).

        Called before a step.

        Args:
            so_far: Name of the metric -> its states after the previous batch. A metric that is
                missing is reset. None: reset all metrics.
        """
        for name in self.ordered:
            if so_far and name in so_far:
                self._assign(name, so_far[name])
            else:
                self.members[name].reset_state()

    def carried(self) -> dict[str, tuple[np.ndarray[Any, Any], ...]]:
        """Return name -> states after a step, for the metrics whose states are carried (`ordered`).

        Each batch continues from the states of the batch before it; such states are not summed.
        """
        return {name: tuple(_values(self.members[name])) for name in sorted(self.ordered)}

    def result(self, name: str, states: tuple[Any, ...]) -> Any:
        """Load states into a metric, and return the metric's `result()` for them."""
        self._assign(name, states)
        return self.members[name].result()

    def assign(self, states: MetricStates) -> bool:
        """Set the states of all metrics.

        Args:
            states: Name of the metric -> its states.

        Returns:
            False, and no metric is set, if the states of one are missing; otherwise True.
        """
        if not states.keys() >= self.members.keys():
            return False
        for name in self.members:
            self._assign(name, states[name])
        return True

    def _assign(self, name: str, arrays: tuple[Any, ...]) -> None:
        variables = self.members[name].variables
        if len(variables) != len(arrays):
            raise CheckpointMismatchError(
                f"{self.where}: the metric {name!r} has {len(variables)} states, but {len(arrays)} "
                "were saved. If it was changed since, use another --output for the new one."
            )
        for variable, array in zip(variables, arrays, strict=True):
            # Sums are float64, whatever the type of their terms.
            variable.assign(np.asarray(array).astype(tf.as_dtype(variable.dtype).as_numpy_dtype))

    # --- whether they add up ----------------------------------------------------------------

    def require_sums(self, why: str) -> None:
        """Declare that the states of all metrics must be summed over batches, as workers do.

        From now on, no states are carried from batch to batch (`ordered` is empty). A metric that
        a later `probe` finds unsuitable is rejected then.

        Args:
            why: What requires sums, for the error message, such as "several workers".

        Raises:
            DefinitionError: An earlier `probe` found that the states of a metric cannot be summed.
        """
        self._must_add_up = why
        self._refuse()

    def probe(self, one: Callable[[], None], other: Callable[[], None]) -> None:
        """Test on two batches whether the states of `unproved` metrics can be summed.

        They can if the state after both batches is the sum of the states after each batch alone. A
        failure is recorded in `failures`; it is an error only after `require_sums`.

        Args:
            one: Function () that updates all metrics by one batch.
            other: Function () that updates all metrics by another batch; both may be the same.

        Raises:
            DefinitionError: A metric keeps state outside its variables, or its `reset_state` does
                not reset all of them; or its states cannot be summed, and `require_sums` was
                called.
        """
        asked = sorted(self.unproved)
        if not asked:
            return
        for name in asked:
            # Some metrics create their variables at the first update.
            _ = self.members[name].variables
        known = {name: [*map(id, self.members[name].variables)] for name in asked}
        fresh = self._after()
        alone = self._after(one)
        twice = self._after(one, one)
        in_python = {name: _python_state(self.members[name]) for name in asked}
        both = self._after(one, other)
        rest = self._after(other)
        start = self._after()
        for name in asked:
            self._check_variables(name, in_python[name])
            self._check_reset(name, dict(zip(known[name], fresh[name], strict=True)), start[name])
            failed = _difference(start[name], alone[name], rest[name], both[name], twice[name])
            if failed:
                self.failures[name] = failed
            moved = [
                not (_same(a, s) and _same(b, s))
                for s, a, b in zip(start[name], alone[name], rest[name], strict=True)
            ]
            if failed or all(moved):
                self.unproved.discard(name)
        if self._must_add_up:
            self._refuse()

    def _after(self, *updates: Callable[[], None]) -> dict[str, Values]:
        for metric in self.members.values():
            metric.reset_state()
        for update in updates:
            update()
        return {name: _values(self.members[name]) for name in self.unproved}

    def _check_variables(self, name: str, before: Mapping[str, Any]) -> None:
        metric = self.members[name]
        kind = type(metric).__name__
        changed = [
            attribute
            for attribute, value in _python_state(metric).items()
            if attribute in before and not _same(value, before[attribute])
        ]
        if changed or not metric.variables:
            kept = f"in self.{changed[0]}" if changed else "outside its variables"
            raise DefinitionError(
                f"{self.where}: the metric {name!r} ({kind}) keeps its state {kept}. A compiled "
                "step can change only variables: create them with self.add_variable(...) in "
                "__init__, and change them with assign() in update_state()."
            )

    def _check_reset(self, name: str, fresh: Mapping[int, Any], start: Values) -> None:
        metric = self.members[name]
        for variable, after in zip(metric.variables, start, strict=True):
            # A metric may create variables at its first update.
            if not _same(fresh.get(id(variable), after), after):
                raise DefinitionError(
                    f"{self.where}: reset_state() of the metric {name!r} ({type(metric).__name__}) "
                    f"does not reset its variable {variable.name!r}. The metric would depend on "
                    "earlier evaluations, which a resumed job does not repeat. Reset all variables "
                    "in reset_state(); a callback can keep a value from epoch to epoch."
                )

    def _refuse(self) -> None:
        if self.failures:
            name, how = next(iter(sorted(self.failures.items())))
            raise DefinitionError(
                f"{self.where}: the states of the metric {name!r} "
                f"({type(self.members[name]).__name__}) do not add up: {how}. They would be added "
                f"by {self._must_add_up}. Leave the metric out, keep sums in its variables, or "
                "run in one process."
            )


def is_foreign(metric: Any) -> bool:
    """Return whether a value is a metric object, but of a library other than Keras 3."""
    return not isinstance(metric, keras.metrics.Metric) and any(
        kind.__name__ == "Metric" for kind in type(metric).__mro__
    )


def _is_of_keras(metric: keras.metrics.Metric) -> bool:
    return f"{type(metric).__module__}.".startswith(_KERAS_OWN)


def _values(metric: keras.metrics.Metric) -> Values:
    return [np.array(keras.ops.convert_to_numpy(variable.value)) for variable in metric.variables]


def _difference(start: Values, one: Values, other: Values, both: Values, twice: Values) -> str:
    """Describe why states cannot be summed over batches; empty if these values do not show it.

    Args:
        start: States after a reset.
        one: States after batch A.
        other: States after batch B.
        both: States after A and then B.
        twice: States after A and then A again.
    """
    for s, a, b, ab, aa in zip(start, one, other, both, twice, strict=True):
        if s.dtype.kind not in "iuf" and s.dtype.name != "bfloat16":
            return f"one is of the type {s.dtype.name}"
        if np.any(s != 0):
            return f"they start at {_shown(s)}, not at 0"
        wide = [array.astype(np.float64) for array in (a, b, ab, aa)]
        scale = _TOLERANCE * max(1e-12, *(float(np.abs(w).max(initial=0.0)) for w in wide[:2]))
        if not np.allclose(wide[2], wide[0] + wide[1], rtol=_TOLERANCE, atol=scale, equal_nan=True):
            return f"two batches give {_shown(a)} and {_shown(b)}, and together {_shown(ab)}"
        if not np.allclose(wide[3], 2 * wide[0], rtol=_TOLERANCE, atol=scale, equal_nan=True):
            return f"a batch gives {_shown(a)}, and twice the same {_shown(aa)}"
    return ""


def _shown(array: np.ndarray[Any, Any]) -> str:
    flat = array.ravel()
    return f"{flat[0]:.4g}" if flat.size == 1 else f"[{flat[0]:.4g}, ...]"


def _same(one: Any, other: Any) -> bool:
    return np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f")


def _python_state(metric: keras.metrics.Metric) -> dict[str, Any]:
    """Return attribute -> value for numbers and arrays that a metric holds outside its variables.

    A metric that changes these in an update is rejected, because they cannot be summed. A list, set
    or dict is represented by its length.
    """
    found: dict[str, Any] = {}
    for name, value in vars(metric).items():
        if name.startswith("_"):
            continue
        if isinstance(value, (bool, int, float, np.ndarray, np.number)):
            found[name] = np.array(value)
        elif isinstance(value, (tf.Tensor, tf.Variable)) and hasattr(value, "numpy"):
            found[name] = np.array(value.numpy())
        elif isinstance(value, (list, set, dict)) and name not in {"variables", "metrics"}:
            found[name] = np.array(len(value))
    return found
