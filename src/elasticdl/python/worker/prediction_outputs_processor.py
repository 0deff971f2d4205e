"""Lets model files keep an old import: the base class of their `PredictionOutputsProcessor`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class BasePredictionOutputsProcessor(ABC):
    """Base class of a user's class that receives each batch of predictions."""

    @abstractmethod
    def process(self, predictions: Any, worker_id: int) -> None:
        """Process a batch of predictions; implemented by the user.

        Args:
            predictions: The model's outputs, one row per example.
            worker_id: Number of the worker that computed them.
        """
