"""Base class for users' classes that define a model: `from elasticdl import ElasticDLSpec`.

`dialects/elasticdl_spec.py` reads such a class; this module has only the part that users see.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from elasticdl.definition import Mode


class ElasticDLSpec:
    """Base class of a spec: a class that defines a model with its loss, optimizer and data.

    A subclass that lacks required methods is rejected when it is used, with an error that names all
    of them. This is not an `ABC`: a function supplied by a flag (`--loss=...`) need not be in the
    class.

    Args:
        context: Information from ElasticDL: `worker_id`, `world_size`, `job_id` and `mode`. A
            subclass that takes params adds them, or `**kwargs`, to its constructor.

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
        """Create the Keras model, functional or subclassed."""

    @abstractmethod
    def create_optimizer(self, lr: float = 0.1) -> Any:
        """Create the optimizer, with learning rate `lr`."""

    @abstractmethod
    def create_loss(self, outputs: Any = None, labels: Any = None) -> Any:
        """Return the loss of a batch: its mean, or one value per example.

        Args:
            outputs: The model's outputs.
            labels: The labels that `create_dataset` returned.
        """

    def create_metrics(
        self,
        mode: Mode = Mode.TRAINING,
        outputs: Any = None,
        labels: Any = None,
        predictions: Any = None,
    ) -> Mapping[str, Any]:
        """Return the metrics of a batch, name -> value; empty unless a subclass overrides this.

        Args:
            mode: Training or evaluation.
            outputs: The model's outputs.
            labels: The labels that `create_dataset` returned.
            predictions: The same as `outputs`, for specs that use this name.
        """
        del mode, outputs, labels, predictions
        return {}

    @abstractmethod
    def create_dataset(self, dataset: Any, mode: Mode) -> Any:
        """Return a `tf.data.Dataset` of examples, given a dataset of serialized records."""
