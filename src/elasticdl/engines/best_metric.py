"""Direction of metrics: infers whether the lowest or the highest value of a metric is the best.

A framework's metric may define it, as in Keras; otherwise its name decides.

Callers: `training_context.py` rejects a metric of unknown direction, `loop.py` compares values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl.training.metric_direction import Direction, direction_by_name

if TYPE_CHECKING:
    from elasticdl.training.trainer import Trainer


def best_mode_of(metric: str, trainer: Trainer) -> Direction | None:
    """Return "min" if the lowest value of a metric is best, "max" for the highest, None if unknown.

    Args:
        metric: Name of the metric, with the prefix `val_` for a validation metric.
        trainer: The trainer that measures it.
    """
    name = metric.removeprefix("val_")
    of_validation = name != metric
    metrics = trainer.evaluation_metrics if of_validation else trainer.training_metrics
    return metrics.direction(name) or direction_by_name(name)
