"""Recorder of a party's own metrics: one JSON file, which never leaves the party.

    [{"round": 1, "train": {"loss": 0.9}, "pre_train_eval": {...}, "post_train_eval": {...}}, ...]

There is one entry per round: repeating a round does not add a second one. Another training run
overwrites the file. Values that are not finite are null.

Callers: `party.py`.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from elasticdl import user_files
from elasticdl.artifacts.local_storage import output_errors, write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasticdl.engines.federated.config.settings import Recorder
    from elasticdl.training.trainer import Metrics, MetricStates, Trainer


class MetricsFile:
    """File on a party's machine to which the party's metrics are written after each round.

    Attributes:
        before_training: Whether to evaluate the global weights before each round's training.
        after_training: Whether to evaluate the party's own weights after it.

    Args:
        settings: Section `metrics_recorder` of the party's config.
    """

    def __init__(self, settings: Recorder) -> None:
        self.before_training, self.after_training = (
            settings.before_training,
            settings.after_training,
        )
        self._path = settings.output_file

    def write(
        self,
        history: str,
        number: int,
        trainer: Trainer,
        *,
        training: MetricStates,
        before: MetricStates,
        after: MetricStates,
    ) -> None:
        """Add a round's metrics to the file, or replace them if the round was repeated.

        Entries of other training runs are removed.

        Args:
            history: ID of the training run that the round belongs to.
            number: The round.
            trainer: Trainer of the model; its metrics turn the metric states into values.
            training: Metric states of the round's training.
            before: Metric states of the global weights, evaluated before training; empty if the
                config does not request them.
            after: Metric states of the party's own weights, evaluated after training; empty if the
                config does not request them.

        Raises:
            OutputError: The file cannot be written.
        """
        entry: dict[str, Any] = {"round": number, "history": history}
        for name, metrics, states in (
            ("train", trainer.training_metrics, training),
            ("pre_train_eval", trainer.evaluation_metrics, before),
            ("post_train_eval", trainer.evaluation_metrics, after),
        ):
            if states:
                entry[name] = _results(metrics, states)
        # Another process may have written the previous round, so the file is read each time.
        entries = {**self._read(history), number: entry}
        rows = [entries[key] for key in sorted(entries)]
        with output_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(rows, indent=2).encode())

    def _read(self, history: str) -> dict[int, dict[str, Any]]:
        """Return the entries in the file that belong to a training run, by round."""
        try:
            rows = json.loads(user_files.read_text(self._path))
            return {each["round"]: each for each in rows if each["history"] == history}
        except (OSError, ValueError, TypeError, KeyError):
            # Not a metrics file, perhaps of another program: it is overwritten.
            return {}


def _results(metrics: Metrics, states: MetricStates) -> Mapping[str, Any]:
    return {name: _number(value) for name, value in metrics.results(states).items()}


def _number(value: Any) -> Any:
    if isinstance(value, (int, float)):
        return value if math.isfinite(value) else None
    return [_number(each) for each in value]
