"""Exists only for old imports: the class a `PredictionOutputsProcessor` is derived from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class BasePredictionOutputsProcessor(ABC):
    """Takes every batch of predictions."""

    @abstractmethod
    def process(self, predictions: Any, worker_id: int) -> None:
        """Do something with a batch of predictions.

        Args:
            predictions: The model's outputs, one row an example.
            worker_id: Who predicted them.
        """
