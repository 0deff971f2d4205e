"""Where a job stands, beside the model's own state: a value that is checkpointed with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.sharding.ledger import Ledger

if TYPE_CHECKING:
    from elasticdl.training.trainer import MetricStates


@dataclass(frozen=True)
class Evaluation:
    """An evaluation on its way.

    Attributes:
        ledger: Which shards of the validation data are in the states.
        states: Metric states so far.
    """

    ledger: Ledger
    states: MetricStates = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where a job stands, beside the model's own state.

    Attributes:
        ledger: Which batches are in the model.
        epoch_begun: The callbacks were told that this epoch began.
        epoch_states: Metric states of this epoch's steps so far.
        best: Best value so far of `TrainingOptions.best_metric`; None before the first.
        best_step: The step it was measured at; -1 before the first.
        stopped: A callback has ended the training.
        evaluation: The evaluation that is going on; None while training.
        evaluated_step: The last step that was evaluated; -1 before the first.
        first_step: How many steps there were before this epoch.
    """

    ledger: Ledger
    epoch_begun: bool = False
    epoch_states: MetricStates = field(default_factory=dict)
    best: float | None = None
    best_step: int = -1
    stopped: bool = False
    evaluation: Evaluation | None = None
    evaluated_step: int = -1
    first_step: int = 0

    def without_slots(self) -> Place:
        """Return the place with all that was in somebody's hands waiting for the next."""
        return replace(
            self,
            ledger=self.ledger.lost(self.ledger.in_hand),
            evaluation=None
            if self.evaluation is None
            else replace(
                self.evaluation,
                ledger=self.evaluation.ledger.lost(self.evaluation.ledger.in_hand),
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "ledger": self.ledger.to_json(),
            "epoch_begun": self.epoch_begun,
            "epoch_states": states_to_json(self.epoch_states),
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
    def from_json(values: Mapping[str, Any]) -> Place:
        """Return the place `to_json` wrote."""
        evaluation = values["evaluation"]
        return Place(
            ledger=Ledger.from_json(values["ledger"]),
            epoch_begun=values["epoch_begun"],
            epoch_states=states_from_json(values["epoch_states"]),
            best=values["best"],
            best_step=values.get("best_step", -1),
            stopped=values["stopped"],
            evaluation=None
            if evaluation is None
            else Evaluation(
                Ledger.from_json(evaluation["ledger"]), states_from_json(evaluation["states"])
            ),
            evaluated_step=values["evaluated_step"],
            # An earlier version's checkpoint does not say it.
            first_step=values.get("first_step", 0),
        )


def states_to_json(states: MetricStates) -> dict[str, Any]:
    """Return metric states as JSON values."""
    return {
        name: [np.asarray(array).tolist() for array in arrays] for name, arrays in states.items()
    }


def states_from_json(states: Mapping[str, Any]) -> MetricStates:
    """Return the metric states `states_to_json` wrote."""
    return {
        name: tuple(np.asarray(array, dtype=np.float64) for array in arrays)
        for name, arrays in states.items()
    }
