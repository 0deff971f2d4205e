"""Evaluation phase: computes a model's metrics on records, in one process or on several workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from elasticdl.evaluation.metrics import add_states

if TYPE_CHECKING:
    from elasticdl.data.batch import Batch
    from elasticdl.training.trainer import MetricStates, Trainer


def running_states(
    trainer: Trainer, batches: Iterable[tuple[int, Batch]]
) -> Iterator[tuple[int, MetricStates]]:
    """Evaluate batches one by one; yield the sums so far after each, to show progress.

    The last pair that is yielded is the result. The model is not changed.

    Args:
        trainer: Trainer that holds the model.
        batches: Pairs (number of a batch's first record, batch).

    Yields:
        The number of examples so far, and the metric states over these examples.
    """
    total: MetricStates = {}
    done = 0
    for _, batch in batches:
        states = trainer.evaluate(batch, total)
        total = add_states([total, states], trainer.evaluation_metrics.ordered)
        done += batch.num_examples
        yield done, total
