"""Where a job stands, beside the model's own state: a value that is checkpointed with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.sharding.ledger import Ledger

if TYPE_CHECKING:
    from elasticdl.training.trainer import MetricStates


@dataclass(frozen=True)
class Place:
    """Where a job stands, beside the model's own state.

    Attributes:
        ledger: Which batches are in the model.
        epoch_begun: The callbacks were told that this epoch began.
        epoch_states: Metric states of this epoch's steps so far.
        best_loss: Lowest validation loss so far.
        stopped: A callback has ended the training.
    """

    ledger: Ledger
    epoch_begun: bool = False
    epoch_states: MetricStates = field(default_factory=dict)
    best_loss: float = math.inf
    stopped: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "ledger": self.ledger.to_json(),
            "epoch_begun": self.epoch_begun,
            "epoch_states": {
                name: [np.asarray(array).tolist() for array in arrays]
                for name, arrays in self.epoch_states.items()
            },
            "best_loss": None if math.isinf(self.best_loss) else self.best_loss,
            "stopped": self.stopped,
        }

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Place:
        """Return the place `to_json` wrote."""
        return Place(
            ledger=Ledger.from_json(values["ledger"]),
            epoch_begun=values["epoch_begun"],
            epoch_states={
                name: tuple(np.asarray(array, dtype=np.float64) for array in arrays)
                for name, arrays in values["epoch_states"].items()
            },
            best_loss=math.inf if values["best_loss"] is None else values["best_loss"],
            stopped=values["stopped"],
        )
