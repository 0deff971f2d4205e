"""Wraps TorchMetrics metrics that a LightningModule has as attributes, updates and logs.

    self.accuracy = MulticlassAccuracy(10)        in __init__
    self.accuracy(logits, labels)                 in a step; or self.accuracy.update(...)
    self.log("val_acc", self.accuracy)            its value over the epoch or the evaluation

Each metric is replaced by a `LoggedMetric`, which wraps it and is not a module, so the state of a
metric is not part of the model. In one process, the state is carried from batch to batch. On
workers, it is reset for each batch, and the states of all batches are added up
(`metric_states.py`). A step must therefore not call `compute()`: no worker has the value of the
epoch so far.

A `MetricCollection`, a `ModuleList` or a `ModuleDict` of metrics becomes a dict or list of
`LoggedMetric`s.

Callers: `trainer.py` when it creates the model, `lightning_steps.py` around a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn

from elasticdl import tracebacks
from elasticdl.errors import DefinitionError
from elasticdl.training.torch.metric_states import StatefulMetric, is_metric

if TYPE_CHECKING:
    from elasticdl.training.trainer import MetricStates


class LoggedMetric:
    """Wraps a metric of a LightningModule, which its steps update and log.

    Args:
        name: Name of the attribute, for errors.
        metric: The metric.
        where: The user's `file:line`, for errors.
    """

    # Without a __dict__, so that its contents are not mistaken for state of the model.
    __slots__ = ("_names", "_shown", "_states", "_where")

    def __init__(self, name: str, metric: Any, where: str) -> None:
        self._states = StatefulMetric(name, metric, where)
        self._names: dict[str, str] = {}
        self._where, self._shown = where, f"self.{name}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Update the metric; return its value for this batch."""
        return self._take(self._states.metric, args, kwargs)

    forward = __call__

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Update the metric."""
        self._take(self._states.metric.update, args, kwargs)

    def compute(self) -> NoReturn:
        """Reject the call, because no worker has the value of the epoch so far."""
        raise self._refusal("compute", "Log the metric: self.log(name, self.metric).")

    def reset(self) -> NoReturn:
        """Reject the call, because each epoch begins with a new state anyway."""
        raise self._refusal("reset", "Remove the call: each epoch begins with a new state.")

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped metric, such as its number of classes."""
        if name.startswith("__") or name in self.__slots__:
            raise AttributeError(name)
        return getattr(self._states.metric, name)

    @property
    def states(self) -> StatefulMetric:
        """The wrapped metric as a `StatefulMetric`, which computes its states."""
        return self._states

    def begin(self, step: str, so_far: MetricStates | None) -> None:
        """Load the metric's states before a step, or reset the metric if there are none.

        Args:
            step: Name of the step, such as `validation_step`. Steps may log the same metric under
                different names.
            so_far: States before the step, by logged name. None: reset the metric.
        """
        self._states.begin((so_far or {}).get(self._names.get(step, "")))

    def logged(self, step: str, name: str) -> None:
        """Store the name under which a step logs the metric, by which `begin` finds its states."""
        self._names[step] = name

    def _take(self, function: Any, args: Any, kwargs: Any) -> Any:
        metric = self._states.metric
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        if tensors and metric.device != tensors[0].device:
            metric.to(tensors[0].device)
        used = metric._filter_kwargs(**kwargs)  # noqa: SLF001 - no public name
        self._states.try_first_update(*args, **used)
        with torch.no_grad():
            return function(*args, **used)

    def _refusal(self, method: str, way_out: str) -> DefinitionError:
        return DefinitionError(
            f"{tracebacks.calling_at(self._where)}: {self._shown}.{method}() is called in a step. "
            "A step sees only its own batch: workers share the batches, and the values are "
            f"combined afterwards. {way_out}"
        )


class LoggedMetrics(dict[str, LoggedMetric]):
    """A dict of metrics that replaces a `MetricCollection` of a LightningModule.

    Args:
        metrics: The metrics by their names in the collection.
        names: Name of a metric without the prefix of the collection -> its name with it.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Update all metrics; return their values for this batch."""
        return {name: metric(*args, **kwargs) for name, metric in self.items()}

    forward = __call__

    def __init__(self, metrics: Mapping[str, LoggedMetric], names: Mapping[str, str]) -> None:
        super().__init__(metrics)
        self._names = dict(names)

    def __missing__(self, name: str) -> LoggedMetric:
        """Return a metric by its name without the prefix of the collection."""
        if name not in self._names:
            raise KeyError(name)
        return self[self._names[name]]

    def compute(self) -> NoReturn:
        """Reject the call, as `LoggedMetric.compute` does."""
        next(iter(self.values())).compute()

    def reset(self) -> NoReturn:
        """Reject the call, as `LoggedMetric.reset` does."""
        next(iter(self.values())).reset()

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Update all metrics."""
        for metric in self.values():
            metric.update(*args, **kwargs)


def take_metrics(model: nn.Module, where: str) -> None:
    """Replace each metric within a module by a `LoggedMetric`, in place.

    Args:
        model: A LightningModule.
        where: The user's `file:line`, for errors.

    Raises:
        DefinitionError: A metric has state that checkpoints cannot contain.
    """
    for prefix, module in list(model.named_modules()):
        if is_metric(module) or isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
            # A metric, also one of other metrics, or a container that holds only metrics is
            # replaced as a whole, as an attribute of its owner.
            continue
        for name, child in list(module._modules.items()):  # noqa: SLF001 - no public name
            path = f"{prefix}.{name}" if prefix else name
            if child is None or (logged := _logged(path, child, where)) is None:
                continue
            del module._modules[name]  # noqa: SLF001
            vars(module)[name] = logged


def metrics_in(model: nn.Module) -> Iterator[LoggedMetric]:
    """Yield the `LoggedMetric`s that `take_metrics` has put into a module."""
    for module in model.modules():
        for value in vars(module).values():
            yield from _within(value)


def _logged(name: str, child: nn.Module, where: str) -> Any:
    if is_metric(child):
        return LoggedMetric(name, child, where)
    if type(child).__name__ == "MetricCollection":
        collection: Any = child
        metrics = dict(collection.items())
        names = dict(zip(collection.keys(keep_base=True), metrics, strict=True))
        logged = {key: LoggedMetric(f"{name}.{key}", m, where) for key, m in metrics.items()}
        return LoggedMetrics(logged, names)
    if not isinstance(child, (nn.ModuleList, nn.ModuleDict)) or not len(child):
        return None
    parts = {key: _logged(f"{name}.{key}", part, where) for key, part in child.named_children()}
    if any(part is None for part in parts.values()):
        return None
    return parts if isinstance(child, nn.ModuleDict) else list(parts.values())


def _within(value: Any) -> Iterator[LoggedMetric]:
    if isinstance(value, LoggedMetric):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _within(each)
    elif isinstance(value, list):
        for each in value:
            yield from _within(each)
