"""Rejects models whose loss depends on a metric of their own.

In `fit`, a metric covers the epoch so far. Here, each step begins with a metric that is reset, so
that the states of batches can be summed over steps and workers. A layer or `compute_loss` that
reads `self.tracker.result()` would therefore compute something else.

Callers: `trainer.py`, while a step is traced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from elasticdl.errors import DefinitionError

if TYPE_CHECKING:
    from elasticdl.definition import Origin
    from elasticdl.training.keras.metric_states import MetricVariables


def check(loss: tf.Tensor, metrics: MetricVariables, origin: Origin) -> None:
    """Check that a loss depends on no metric; does nothing in a step that runs uncompiled.

    Args:
        loss: Loss of a batch, in the graph in which it is computed.
        metrics: The metrics; those whose states are carried from batch to batch may be read.
        origin: Prefix of the error.

    Raises:
        DefinitionError: It depends on a metric.
    """
    if tf.executing_eagerly():
        return
    handles = {
        id(loss.graph.capture(variable.value.handle)): name
        for name, metric in metrics.members.items()
        if name not in metrics.ordered
        for variable in metric.variables
    }
    found, seen = [loss.op] if handles else [], set[int]()
    while found:
        op = found.pop()
        if id(op) in seen:
            continue
        seen.add(id(op))
        if op.type == "ReadVariableOp" and id(op.inputs[0]) in handles:
            raise DefinitionError(
                f"{origin}: the loss depends on the metric {handles[id(op.inputs[0])]!r}, which "
                "the model reads in a training step. `fit` resets a metric at each epoch, "
                "ElasticDL at each step, to sum metrics over workers. Keep the value that the "
                "model reads in a weight (self.add_weight(..., trainable=False))."
            )
        found += [tensor.op for tensor in op.inputs]
