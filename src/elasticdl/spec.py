"""The class users derive a spec from: `from elasticdl import ElasticDLSpec`.

How such a class is read is said in `dialects/elasticdl_spec.py`; here is only what a user sees.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from elasticdl.definition import Mode


class ElasticDLSpec:
    """Says how to create a model and everything training it needs; users derive from it.

    A subclass that lacks an abstract method is refused when it is used, naming all it lacks. Not
    an `ABC`: what a flag supplies (`--loss=...`) need not be in the class.

    Args:
        context: What ElasticDL tells: `worker_id`, `world_size`, `job_id` and `mode`. A subclass
            that takes params adds them, or `**kwargs`, to its constructor.

    Example:
        >>> class Mine(ElasticDLSpec):
        ...     def __init__(self, context=None, units=8):
        ...         super().__init__(context=context)
        ...         self.units = units
    """

    def __init__(self, context: Mapping[str, Any] | None = None) -> None:
        self._context = context

    @abstractmethod
    def create_model(self) -> Any:
        """Return the Keras model, made with the functional API or as a subclass."""

    @abstractmethod
    def create_optimizer(self, lr: float = 0.1) -> Any:
        """Return the optimizer."""

    @abstractmethod
    def create_loss(self, outputs: Any = None, labels: Any = None) -> Any:
        """Return the loss of a batch."""

    def create_metrics(
        self,
        mode: Mode = Mode.TRAINING,
        outputs: Any = None,
        labels: Any = None,
        predictions: Any = None,
    ) -> Mapping[str, Any]:
        """Return the values of a batch by name; nothing, unless a subclass says more.

        Args:
            mode: Training or evaluation.
            outputs: The model's outputs.
            labels: As `create_dataset` gave them.
            predictions: The outputs again, under the name some specs use.
        """
        del mode, outputs, labels, predictions
        return {}

    @abstractmethod
    def create_dataset(self, dataset: Any, mode: Mode) -> Any:
        """Return a `tf.data.Dataset` of examples, made of one of serialized records."""
