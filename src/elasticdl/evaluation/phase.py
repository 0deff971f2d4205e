"""Measuring a model on records: a phase of a training run, or a job of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from elasticdl.evaluation.metrics import add_states

if TYPE_CHECKING:
    from elasticdl.data.batch import Batch
    from elasticdl.training.trainer import MetricStates, Trainer


def evaluate(
    trainer: Trainer,
    batches: Iterable[Batch],
    advanced: Callable[[int], object] | None = None,
) -> dict[str, float | list[float]]:
    """Return the metrics of a model over batches; nothing of the model changes.

    Args:
        trainer: The model.
        batches: What to measure on.
        advanced: Told how many examples are done.
    """
    total: MetricStates = {}
    done = 0
    for batch in batches:
        total = add_states([total, trainer.evaluate(batch)])
        done += batch.num_examples
        if advanced is not None:
            advanced(done)
    return trainer.evaluation_metrics.results(total)
