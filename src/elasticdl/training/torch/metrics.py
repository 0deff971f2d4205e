"""Metrics as states that add up: each is a mean over examples, kept as (sum, count)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from elasticdl.errors import DefinitionError
from elasticdl.training.metric_names import check_names

if TYPE_CHECKING:
    from elasticdl.definition import MetricFunctions, NamedMetric
    from elasticdl.training.trainer import MetricStates


class TorchMetrics:
    """Computes the values of one mode's metrics for a batch, and reads summed states.

    Args:
        functions: What is measured. A named metric is a function `(labels, predictions)` that
            returns one value an example, or their mean.
        where: The user's file, for errors.

    Raises:
        DefinitionError: A metric is not a function.
    """

    def __init__(self, functions: MetricFunctions, *, where: str) -> None:
        self._functions = functions
        self._where = functions.where or where
        check_names([named.name for named in functions.named], self._where)
        for named in functions.named:
            if hasattr(named.metric, "update_state") or not callable(named.metric):
                raise DefinitionError(
                    f"{where}: the metric {named.name!r} is a {type(named.metric).__name__}; a "
                    "PyTorch model is measured by functions (labels, predictions) of one value "
                    "an example."
                )

    @property
    def ordered(self) -> frozenset[str]:
        """See `trainer.Metrics`: sums of values and counts add up."""
        return frozenset()

    def means(self, outputs: Any, labels: Any) -> dict[str, torch.Tensor]:
        """Return each metric's mean over a batch.

        Args:
            outputs: The model's outputs, detached.
            labels: As tensors.

        Raises:
            DefinitionError: The metrics function returned no dict, or a metric is for an output
                that the model does not have.
        """
        means: dict[str, torch.Tensor] = {}
        if self._functions.scalars is not None:
            values = self._functions.scalars(outputs, labels)
            if not isinstance(values, Mapping):
                raise DefinitionError(
                    f"{self._where}: the metrics function returned "
                    f"{type(values).__name__}, not a dict of name -> value."
                )
            check_names([*values, *(named.name for named in self._functions.named)], self._where)
            means |= {name: _mean(value) for name, value in values.items()}
        for named in self._functions.named:
            means[named.name] = _mean(named.metric(labels, _select(outputs, named)))
        return means

    def values(self, outputs: Any, labels: Any) -> dict[str, torch.Tensor]:
        """Return what named metrics say of each example; those of a batch's value have none.

        Args:
            outputs: The model's outputs, detached.
            labels: As tensors.
        """
        values: dict[str, torch.Tensor] = {}
        for named in self._functions.named:
            value = torch.as_tensor(named.metric(labels, _select(outputs, named))).detach()
            if value.ndim:
                values[named.name] = value.to(torch.float64).reshape(len(value), -1).mean(1)
        return values

    def results(self, states: MetricStates) -> dict[str, float | list[float]]:
        """Return the value of each metric from summed states."""
        return {
            name: float(total) / float(count) if count else float("nan")
            for name, (total, count) in states.items()
        }


def summed(steps: Sequence[Mapping[str, torch.Tensor]], num_examples: int) -> MetricStates:
    """Return the states of batches of equal size.

    Args:
        steps: For each batch, a metric's mean by its name; a metric may be missing.
        num_examples: Examples in a batch.
    """
    totals: dict[str, tuple[float, int]] = {}
    for means in steps:
        for name, mean in means.items():
            total, count = totals.get(name, (0.0, 0))
            totals[name] = (total + float(mean) * num_examples, count + num_examples)
    return {
        name: (np.asarray(total), np.asarray(float(count)))
        for name, (total, count) in totals.items()
    }


def _mean(value: Any) -> torch.Tensor:
    # float64, so that the share of right answers is that share, however batches are cut.
    return torch.as_tensor(value).detach().to(torch.float64).mean()


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
