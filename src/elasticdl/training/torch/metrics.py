"""Computes metrics as means over examples: each batch adds to a state (sum, count).

With sample weights the count is the sum of the weights. TorchMetrics metrics have their own states
(`metric_states.py`), and sample weights do not affect them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch

from elasticdl.errors import DefinitionError
from elasticdl.training.means import mean_of
from elasticdl.training.metric_names import check_names, in_order
from elasticdl.training.torch.label_shapes import TorchLabelShape
from elasticdl.training.torch.losses import spread
from elasticdl.training.torch.metric_states import StatefulMetric, is_metric

if TYPE_CHECKING:
    from elasticdl.definition import MetricFunctions, NamedMetric
    from elasticdl.training.trainer import MetricStates

Addend: TypeAlias = "tuple[torch.Tensor, torch.Tensor | float]"
"""A total and a count, float64."""

Addends: TypeAlias = "dict[str, Addend]"
"""Metric name -> the total and count that a batch adds to it."""


class TorchMetrics:
    """Computes the metric states of a batch, and metric values from states.

    Args:
        functions: The metrics. A named metric is a function `(labels, predictions)` that returns
            one value per example, or their mean; or a TorchMetrics metric.
        where: The user's file, for errors.
        why_sums: The reason that states of batches are added up, for errors; empty if they are
            carried from one batch to the next.
        may_reshape: Whether labels may be reshaped for a metric; see `label_shapes.py`.
        maximizes_loss: Whether the optimizer maximizes the loss, so that high values are better.

    Raises:
        DefinitionError: A metric is neither a function nor a TorchMetrics metric, or is called
            `loss`.
    """

    def __init__(
        self,
        functions: MetricFunctions,
        *,
        where: str,
        why_sums: str = "",
        may_reshape: bool = False,
        maximizes_loss: bool = False,
    ) -> None:
        self._functions = functions
        self._maximizes_loss = maximizes_loss
        self._where = functions.where or where
        check_names([named.name for named in functions.named], self._where)
        self._means = [named for named in functions.named if not is_metric(named.metric)]
        self._with_states = {
            named.name: (StatefulMetric(named.name, named.metric, self._where), named)
            for named in functions.named
            if is_metric(named.metric)
        }
        # Metrics that a model updates and logs itself, from its first step on.
        self._logged: dict[str, StatefulMetric] = {}
        self._why_sums = why_sums
        self._label_shapes = {
            name: TorchLabelShape(self._where, f"the metric {name!r}", may_reshape=may_reshape)
            for name in [named.name for named in functions.named]
        }
        self._shape_of_all = TorchLabelShape(self._where, "a metric", may_reshape=may_reshape)
        weighted = next((n for _, n in self._with_states.values() if n.weighted), None)
        if weighted is not None:
            raise DefinitionError(
                f"{self._where}: the metric {weighted.name!r} is a "
                f"{type(weighted.metric).__name__} of TorchMetrics, to which sample weights cannot "
                "be applied. Move it to eval_metrics_fn, or return a function with one value per "
                "example."
            )
        for named in self._means:
            if hasattr(named.metric, "update_state") or not callable(named.metric):
                raise DefinitionError(
                    f"{where}: the metric {named.name!r} is a {type(named.metric).__name__}; a "
                    "PyTorch model is measured by functions (labels, predictions) with one value "
                    "per example, or by metrics of TorchMetrics."
                )

    @property
    def ordered(self) -> frozenset[str]:
        """Metrics whose state is carried from batch to batch; none after `require_sums`."""
        if self._why_sums:
            return frozenset()
        return frozenset([*self._with_states, *self._logged])

    def require_sums(self, why: str) -> None:
        """Reject metrics whose states cannot be summed over batches.

        Called before the first step if workers share the batches. From then on, `states` returns
        the states of each batch alone, which the workers add up.

        Args:
            why: What adds them up, for the error message, such as "several workers".

        Raises:
            DefinitionError: The states of a metric cannot be added up.
        """
        for metric in [metric for metric, _ in self._with_states.values()] + [
            *self._logged.values()
        ]:
            metric.require_sum(why)
        self._why_sums = why

    def states(
        self, outputs: Any, labels: Any, weights: torch.Tensor | None, num_examples: int,
        so_far: MetricStates | None,
    ) -> MetricStates:  # fmt: skip
        """Return the metric states of a batch, by name.

        For the metrics in `ordered`, these are the states of all batches so far, this one included;
        for all others, they are those of this batch alone.

        Args:
            outputs: The model's outputs, detached.
            labels: Labels of the batch, as tensors.
            weights: Sample weights.
            num_examples: Examples in the batch.
            so_far: The states of all earlier batches, of which only the metrics in `ordered` are
                used. None: there are no earlier batches.

        Raises:
            DefinitionError: The metrics function did not return a dict, a metric has an invalid
                name or no value per example to be weighted, or a TorchMetrics metric keeps values
                outside its states.
        """
        found = summed([self.addends(outputs, labels, weights, num_examples)])
        theirs: dict[str, tuple[np.ndarray[Any, Any], ...]] = {}
        for name, (metric, named) in self._with_states.items():
            selected = _select(outputs, named)
            shaped = self._label_shapes[name](selected, labels)
            if self._why_sums:
                theirs[name] = metric.share(selected, shaped)
            else:
                theirs[name] = metric.carried((so_far or {}).get(name), selected, shaped)
        return {**found, **theirs}

    def logged(self, metrics: Mapping[str, StatefulMetric]) -> MetricStates:
        """Return the states of the metrics that a LightningModule has just updated with a batch.

        A metric that is logged for the first time becomes one of this object's metrics.

        Args:
            metrics: Logged name -> metric.

        Raises:
            DefinitionError: States are added up over batches, and those of a metric cannot be.
        """
        for name, metric in metrics.items():
            if self._logged.get(name) is not metric:
                metric.name = name
                if self._why_sums:
                    metric.require_sum(self._why_sums)
                self._logged[name] = metric
        is_carried = not self._why_sums
        return {name: metric.end(carried=is_carried) for name, metric in metrics.items()}

    def find_label_shapes(self, outputs: Any, labels: Any) -> None:
        """Determine from an example batch which shape of labels each metric needs.

        Args:
            outputs: The model's outputs.
            labels: Labels of the batch, as tensors.
        """
        if self._functions.scalars is not None:
            self._shape_of_all.find(self._functions.scalars, outputs, labels)
        for named in self._functions.named:
            shape = self._label_shapes[named.name]
            shape.find(_tried(named.metric), _select(outputs, named), labels)

    def problem(self, outputs: Any, labels: Any) -> DefinitionError | None:
        """Test the TorchMetrics metrics on a representative batch, before training.

        The error is returned, not raised, so that the caller can report more important ones first.
        None: no error was found.

        Args:
            outputs: The model's outputs, detached.
            labels: Labels of the batch, as tensors. None: test nothing.
        """
        if labels is None:
            return None
        try:
            for metric, named in self._with_states.values():
                selected = _select(outputs, named)
                shaped = self._label_shapes[named.name](selected, labels)
                metric.check_update(selected, shaped, sums=bool(self._why_sums))
        except DefinitionError as error:
            return error
        except Exception:  # noqa: BLE001 - the evaluation will report it, on a batch of the data
            return None
        return None

    def addends(
        self, outputs: Any, labels: Any, weights: torch.Tensor | None, num_examples: int
    ) -> Addends:
        """Return the total and count that a batch adds to each metric.

        Args:
            outputs: The model's outputs, detached.
            labels: Labels of the batch, as tensors.
            weights: Sample weights: a metric is then sum(weight x value) / sum(weight).
            num_examples: Examples in the batch.

        Raises:
            DefinitionError: The metrics function did not return a dict, a metric is called `loss`
                or is for an output that the model does not have, or has no value per example to be
                weighted.
        """
        addends: Addends = {}
        if self._functions.scalars is not None:
            values = self._functions.scalars(outputs, self._shape_of_all(outputs, labels))
            if not isinstance(values, Mapping):
                raise DefinitionError(
                    f"{self._where}: the metrics function returned "
                    f"{type(values).__name__}, not a dict of name -> value."
                )
            check_names([*values, *(named.name for named in self._functions.named)], self._where)
            for name, value in values.items():
                addends[name] = self._addend(name, value, weights, num_examples)
        for named in self._means:
            value = self._computed(named, outputs, labels)
            addends[named.name] = self._addend(named.name, value, weights, num_examples)
        return addends

    def _computed(self, named: NamedMetric, outputs: Any, labels: Any) -> Any:
        """Call a metric function with the output and the shape of labels that it needs."""
        selected = _select(outputs, named)
        return named.metric(self._label_shapes[named.name](selected, labels), selected)

    def _addend(
        self, name: str, value: Any, weights: torch.Tensor | None, num_examples: int
    ) -> Addend:
        # float64, so that an accuracy does not depend on the division into batches.
        values = torch.as_tensor(value).detach().to(torch.float64)
        if weights is None:
            return values.mean() * num_examples, float(num_examples)
        of_each = spread(weights, values) if values.ndim else None
        if of_each is None:
            raise DefinitionError(
                f"{self._where}: the input function returns sample weights, and the metric "
                f"{name!r} is of shape {list(values.shape)}, which does not match weights of shape "
                f"{list(weights.shape)}. Return one value per example."
            )
        of_each = of_each.double()
        return (values * of_each).sum(), of_each.sum()

    def values(self, outputs: Any, labels: Any) -> dict[str, torch.Tensor]:
        """Return per-example values of named metrics; those with one value per batch are omitted.

        Args:
            outputs: The model's outputs, detached.
            labels: Labels of the batch, as tensors.
        """
        values: dict[str, torch.Tensor] = {}
        for named in self._means:
            value = torch.as_tensor(self._computed(named, outputs, labels)).detach()
            if value.ndim:
                values[named.name] = value.to(torch.float64).reshape(len(value), -1).mean(1)
        return values

    def direction(self, name: str) -> Literal["min", "max"] | None:
        """Return "max" if higher values of a metric are better, "min" if lower; None if unknown."""
        if name == "loss" and self._maximizes_loss:
            return "max"
        metric, _ = self._with_states.get(name, (self._logged.get(name), None))
        better = None if metric is None else metric.higher_is_better
        return None if better is None else "max" if better else "min"

    def results(self, states: MetricStates) -> dict[str, float | list[float]]:
        """Return all metric values from metric states; a TorchMetrics metric may have several."""
        results: dict[str, float | list[float]] = {}
        for name in in_order(states, [named.name for named in self._functions.named]):
            metric, _ = self._with_states.get(name, (self._logged.get(name), None))
            if metric is not None:
                results |= metric.result(states[name])
            else:
                results[name] = mean_of(*states[name])
        return results


def summed(steps: Sequence[Addends]) -> MetricStates:
    """Return the metric states of some batches: the sums of their totals and of their counts.

    Args:
        steps: The addends of each batch; a metric may be missing.
    """
    totals: dict[str, tuple[float, float]] = {}
    for addends in steps:
        for name, (added, counted) in addends.items():
            total, count = totals.get(name, (0.0, 0.0))
            totals[name] = (total + float(added), count + float(counted))
    return {name: (np.asarray(total), np.asarray(count)) for name, (total, count) in totals.items()}


def added(steps: Sequence[MetricStates]) -> MetricStates:
    """Return the sum of each metric's states over some batches."""
    totals: dict[str, tuple[np.ndarray[Any, Any], ...]] = {}
    for states in steps:
        for name, arrays in states.items():
            before = totals.get(name)
            totals[name] = (
                tuple(arrays)
                if before is None
                else tuple(mine + other for mine, other in zip(before, arrays, strict=True))
            )
    return totals


def _tried(metric: Any) -> Callable[[Any, Any], Any]:
    """Return a function (outputs, labels) that tries a metric without changing it.

    It updates a copy of a TorchMetrics metric, or calls a metric function. The caller watches which
    tensors this creates, to find the shape of labels that the metric needs.
    """
    if is_metric(metric):
        return lambda outputs, labels: copy.deepcopy(metric).update(outputs, labels)
    return lambda outputs, labels: metric(labels, outputs)


def _select(outputs: Any, named: NamedMetric) -> Any:
    if named.output is None:
        return outputs
    if not isinstance(outputs, Mapping) or named.output not in outputs:
        have = sorted(outputs) if isinstance(outputs, Mapping) else "a single output"
        raise DefinitionError(
            f"The metric {named.name!r} is for the model output {named.output!r}; the model "
            f"has {have}."
        )
    return outputs[named.output]
