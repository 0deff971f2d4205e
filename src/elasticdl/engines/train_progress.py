"""Training progress: all state of a job that is checkpointed beside the model's own state.

With it, a resumed run continues at the next batch, with the metrics of its epoch so far. On
workers, a joining worker receives it from a peer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.sharding.ledger import Ledger

if TYPE_CHECKING:
    from elasticdl.training.trainer import MetricStates


@dataclass(frozen=True)
class EvaluationProgress:
    """Progress of a running evaluation.

    Attributes:
        ledger: Records which shards of the validation data are included in `states`.
        states: Metric name -> the metric's state over the examples evaluated so far; see
            `trainer.MetricStates`.
    """

    ledger: Ledger
    states: MetricStates = field(default_factory=dict)


@dataclass(frozen=True)
class TrainProgress:
    """Training progress of a job, beside the model's own state.

    Attributes:
        ledger: Records which batches are in the model.
        epoch_begun: Whether `on_epoch_begin` of the callbacks was called for this epoch.
        epoch_states: Metric name -> the metric's state over this epoch's steps so far; see
            `trainer.MetricStates`.
        epoch_examples: Number of examples in this epoch's steps so far.
        best: Best value so far of `TrainingOptions.best_metric`; None before the first.
        best_step: Step of the best value; -1 before the first.
        stopped: Whether a callback has ended training.
        evaluation: The running evaluation; None while training.
        evaluated_step: The last step that was evaluated; -1 before the first.
        first_step: Number of steps before this epoch.
    """

    ledger: Ledger
    epoch_begun: bool = False
    epoch_states: MetricStates = field(default_factory=dict)
    epoch_examples: int = 0
    best: float | None = None
    best_step: int = -1
    stopped: bool = False
    evaluation: EvaluationProgress | None = None
    evaluated_step: int = -1
    first_step: int = 0

    def without_ranks(self) -> TrainProgress:
        """Return the progress with all leases released, to be assigned again."""
        return replace(
            self,
            ledger=self.ledger.release(self.ledger.leased),
            evaluation=None
            if self.evaluation is None
            else replace(
                self.evaluation,
                ledger=self.evaluation.ledger.release(self.evaluation.ledger.leased),
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the progress as JSON values, for the metadata of a checkpoint."""
        return {
            "ledger": self.ledger.to_json(),
            "epoch_begun": self.epoch_begun,
            "epoch_states": states_to_json(self.epoch_states),
            "epoch_examples": self.epoch_examples,
            "best": self.best,
            "best_step": self.best_step,
            "stopped": self.stopped,
            "evaluation": None
            if self.evaluation is None
            else {
                "ledger": self.evaluation.ledger.to_json(),
                "states": states_to_json(self.evaluation.states),
            },
            "evaluated_step": self.evaluated_step,
            "first_step": self.first_step,
        }

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> TrainProgress:
        """Return the progress that `to_json` wrote."""
        evaluation = values["evaluation"]
        return TrainProgress(
            ledger=Ledger.from_json(values["ledger"]),
            epoch_begun=values["epoch_begun"],
            epoch_states=states_from_json(values["epoch_states"]),
            epoch_examples=values["epoch_examples"],
            best=values["best"],
            best_step=values["best_step"],
            stopped=values["stopped"],
            evaluation=None
            if evaluation is None
            else EvaluationProgress(
                Ledger.from_json(evaluation["ledger"]), states_from_json(evaluation["states"])
            ),
            evaluated_step=values["evaluated_step"],
            first_step=values["first_step"],
        )


def states_to_json(states: MetricStates) -> dict[str, Any]:
    """Return metric states as JSON values, to save or send them; see `states_from_json`."""
    return {
        name: [np.asarray(array).tolist() for array in arrays] for name, arrays in states.items()
    }


def states_from_json(states: Mapping[str, Any]) -> MetricStates:
    """Return the metric states that `states_to_json` wrote."""
    return {
        name: tuple(np.asarray(array, dtype=np.float64) for array in arrays)
        for name, arrays in states.items()
    }
