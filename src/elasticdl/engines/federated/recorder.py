"""What a party writes down of its own metrics: one JSON file, which stays where it is.

    [{"round": 1, "train": {"loss": 0.9}, "pre_train_eval": {...}, "post_train_eval": {...}}, ...]

An entry a round: a round that is answered again is not written twice, and another training begins
the file anew. Values that are no number are null.

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

    from elasticdl.engines.federated.settings import Recorder
    from elasticdl.training.trainer import Metrics, MetricStates, Trainer


class MetricsFile:
    """The file that a party's config asks for.

    Attributes:
        before_training: The weights of a round are to be evaluated before it trains them.
        after_training: And after.

    Args:
        asked: What the config says.
    """

    def __init__(self, asked: Recorder) -> None:
        self.before_training, self.after_training = asked.before_training, asked.after_training
        self._path = asked.output_file

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
        """Enter a round.

        Args:
            history: The training it belongs to.
            number: The round.
            trainer: Knows what states come to.
            training: What was measured while training.
            before: What the global weights scored; nothing where that was not asked for.
            after: What the party's own came to.

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
        # Another process may have entered the round before.
        entries = {**self._read(history), number: entry}
        told = [entries[key] for key in sorted(entries)]
        with output_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(told, indent=2).encode())

    def _read(self, history: str) -> dict[int, dict[str, Any]]:
        """Return what is written of the same training."""
        try:
            told = json.loads(user_files.read_text(self._path))
            return {each["round"]: each for each in told if each["history"] == history}
        except (OSError, ValueError, TypeError, KeyError):
            # Somebody else's file, perhaps of another program: it is written anew.
            return {}


def _results(metrics: Metrics, states: MetricStates) -> Mapping[str, Any]:
    return {name: _number(value) for name, value in metrics.results(states).items()}


def _number(value: Any) -> Any:
    if isinstance(value, (int, float)):
        return value if math.isfinite(value) else None
    return [_number(each) for each in value]
