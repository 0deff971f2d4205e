"""Runs the steps of a LightningModule: `training_step`, `validation_step` and `predict_step`.

    batch                   argument of a step: (features, labels), or the features alone if there
                            are no labels; sample weights come third
    training_step           returns the loss, or a dict with `loss`
    validation_step         logs values; what it returns is the loss only if it logs none
    predict_step            receives the features; defaults to `forward`
    self.log, log_dict      a mean over the examples, of an epoch or of an evaluation; or a metric
                            of TorchMetrics, see `logged_metrics.py`

In most modules the names of logged values begin with the stage, training or validation:
`train_acc`, `val/loss`. Here `val_` is the prefix of evaluation metrics, so the stage is removed
first. A value logged as `loss` is reported as the loss, whatever the step returns, as in Lightning.

`dialects/lightning_module.py` creates the module and calls its `configure_optimizers`.

Lightning itself is not needed: a module accesses its `Trainer` only through `self.trainer`, which
here is a small object with the epoch and the step.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn

from elasticdl import tracebacks
from elasticdl.errors import DefinitionError
from elasticdl.training.metric_names import split_stage
from elasticdl.training.torch.logged_metrics import LoggedMetric, metrics_in
from elasticdl.training.torch.steps import Stepped, Tensors, check_parts

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition
    from elasticdl.training.torch.inputs import Arguments
    from elasticdl.training.torch.losses import TorchLoss
    from elasticdl.training.torch.metric_states import StatefulMetric
    from elasticdl.training.torch.metrics import Addends
    from elasticdl.training.torch.precision import MixedPrecision
    from elasticdl.training.trainer import MetricStates

_LIGHTNING = ("lightning", "pytorch_lightning")
_MEANS = ("mean", "avg")
# All logged values are means and are reported everywhere, so these options have no effect here.
_LOG_OPTIONS = {
    *("prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "sync_dist"),
    *("sync_dist_group", "add_dataloader_idx", "metric_attribute", "rank_zero_only"),
}
# Position of `on_epoch` among the arguments of `log` that follow the value.
_ON_EPOCH = 3

_NO_OPTIMIZER = (
    "Steps cannot access the optimizer. To change learning rates, return a scheduler from "
    "configure_optimizers()."
)
# Methods of a LightningModule that need a trainer -> what to do instead.
_INSTEAD = dict.fromkeys(
    ("optimizers", "lr_schedulers", "toggle_optimizer", "untoggle_optimizer", "trainer.optimizers"),
    _NO_OPTIMIZER,
)
# Attributes that `TrainerProgress` sets itself.
_OWN = ("training", "_origin", "_step", "_epoch")


class TrainerProgress:
    """The object that a LightningModule gets as `self.trainer`: only progress can be read.

    Args:
        origin: Prefix for error messages.
        step: Function () -> number of updates so far.
        epoch: Function () -> current epoch, from 0.

    Attributes:
        training: Whether a training step is running.
    """

    # Attributes that modules read before they print.
    is_global_zero = True
    sanity_checking = False
    progress_bar_callback = None

    def __init__(self, origin: object, step: Callable[[], int], epoch: Callable[[], int]) -> None:
        self.training = False
        self._origin, self._step, self._epoch = origin, step, epoch

    @property
    def global_step(self) -> int:
        """Number of updates so far."""
        return self._step()

    @property
    def current_epoch(self) -> int:
        """Current epoch, from 0."""
        return self._epoch()

    def __getattr__(self, name: str) -> NoReturn:
        """Reject the use of other attributes of a Lightning Trainer.

        Raises:
            AttributeError: The name begins with two underscores, as those that Python looks up to
                copy an object.
            DefinitionError: The user's module uses the attribute.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        # Methods and properties of Lightning's module read attributes of its trainer.
        caller = sys._getframe(1).f_code  # noqa: SLF001 - the only way to know who reads it
        is_theirs = any(f"/{package}/" in caller.co_filename for package in _LIGHTNING)
        used = caller.co_name if is_theirs else f"trainer.{name}"
        advice = _INSTEAD.get(
            used,
            "There is no Lightning Trainer here; self.trainer has only current_epoch and "
            "global_step. Pass the value as an argument of the module: --params=NAME=VALUE.",
        )
        where = tracebacks.calling_at(self._origin)
        raise DefinitionError(f"{where}: the module uses self.{used}. {advice}")

    def __setattr__(self, name: str, value: object) -> None:
        """Reject changes of the trainer, which would have no effect.

        Raises:
            DefinitionError: The user's module sets an attribute.
        """
        if name not in _OWN:
            raise DefinitionError(
                f"{tracebacks.calling_at(self._origin)}: the module sets self.trainer.{name}, "
                "which would have no effect: there is no Lightning Trainer here. To end the "
                "training, set self.model.stop_training = True in a callback: def callbacks() in "
                "the file."
            )
        super().__setattr__(name, value)


class LightningSteps:
    """Computes results with the steps that a LightningModule defines; see `steps.Steps`.

    Args:
        definition: The model's definition, for errors.
        loss: Finds the divisor of the loss that a step returns: the number by which the sum over
            examples was divided.
        precision: The number format of steps.
        without_effects: Function (seed) -> context manager. In its block, the model is in
            evaluation mode, without gradients, and changes to its buffers are undone. See
            `steps.check_parts`.
        progress: The object that the module gets as `self.trainer`.

    Attributes:
        by_step: Reported name -> logged name, of values that `training_step` logs without
            `on_epoch`. In Lightning, their value after an epoch is that of its last batch.
    """

    def __init__(
        self,
        definition: ModelDefinition,
        loss: TorchLoss,
        precision: MixedPrecision,
        without_effects: Callable[..., AbstractContextManager[Any]],
        progress: TrainerProgress,
    ) -> None:
        self._definition, self._loss = definition, loss
        self._precision, self._without_effects, self._progress = (
            precision,
            without_effects,
            progress,
        )
        self._batch_index = _BatchIndex(definition.origin)
        self._looked_at: nn.Module | None = None
        self._metrics: Sequence[LoggedMetric] = ()
        self.by_step: dict[str, str] = {}

    def outputs(self, model: nn.Module, features: Any) -> Any:
        """Return the model's outputs for features: the result of `predict_step`."""
        with self._attached(model, "predict_step"), self._precision.autocast():
            return self._call(model, "predict_step", features)

    def training(self, model: nn.Module, batch: Tensors) -> Stepped:
        """Run `training_step`; return its loss and the logged values.

        Raises:
            DefinitionError: The step returns no loss, or logs a value that is not a mean.
        """
        self._progress.training = True
        with self._attached(model, "training_step") as logged:
            try:
                returned: list[Any] = []

                def compute() -> torch.Tensor:
                    returned.append(self._call(model, "training_step", _joined(batch)))
                    return self._loss_in(returned[0], "training_step")

                with self._precision.autocast():
                    loss = self._loss.computed(compute, None, batch.num_examples)
            finally:
                self._progress.training = False
        self.by_step |= logged.by_step
        return Stepped(loss, None, logged.addends(batch.num_examples), logged.metrics)

    def evaluation(
        self, model: nn.Module, batch: Tensors, so_far: MetricStates | None = None
    ) -> Stepped:
        """Run `validation_step`, or `test_step` if there is none.

        As in Lightning, the loss is the value that the step logs as `loss`. If it logs none, a loss
        that it returns is used: one number, or `loss` in a dict.
        """
        step = "validation_step" if _has(model, "validation_step") else "test_step"
        if not _has(model, step):
            raise DefinitionError(
                f"{self._definition.origin}: the module has no validation_step(), so it cannot be "
                "evaluated. Add it."
            )
        with self._attached(model, step, so_far) as logged, self._precision.autocast():
            returned = self._call(model, step, _joined(batch))
            addends = logged.addends(batch.num_examples)
            value, loss = _loss_of(returned), None
            # A tensor with several elements is not the loss, but such as the predictions.
            is_loss = value is not None and (isinstance(returned, Mapping) or value.ndim == 0)
            if is_loss and "loss" not in addends:
                loss = self._loss.computed(lambda: value, None, batch.num_examples)
        return Stepped(loss, None, addends, logged.metrics)

    def touch(self, model: nn.Module, batch: Tensors) -> Any:
        """Run `training_step`, so that the caller can observe what it changes."""
        with self._attached(model, "training_step"), self._precision.autocast():
            return self._call(model, "training_step", _joined(batch))

    def arguments(self, model: nn.Module, features: Any) -> Arguments | None:
        """Return the features as the argument of `forward`; None if there is no `forward`."""
        return ((features,), {}) if _has(model, "forward") else None

    def check_evaluation(self, model: nn.Module, batch: Tensors) -> None:
        """Run `validation_step`, so that the caller can observe what it changes.

        For the features of a prediction, whose batch has `num_examples` 0, `predict_step` is run.
        """
        if batch.num_examples:
            self.evaluation(model, batch)
        else:
            self.outputs(model, batch.features)

    def check_splits(self, model: nn.Module, batch: Tensors, stepped: Stepped) -> None:
        """Check that the loss of a batch follows from its parts' losses; see `Steps.check_splits`.

        Runs `training_step` on each part and on the whole batch, with the model in evaluation mode.

        Raises:
            DefinitionError: The loss of the batch is not the weighted mean of its parts' losses.
        """
        del stepped
        check_parts(self, self._loss, self._without_effects, model, batch)

    def _call(self, model: nn.Module, name: str, given: Any) -> Any:
        """Call a step of the module, and return what it returns.

        Args:
            model: The module.
            name: Name of the step, such as `training_step`.
            given: The batch, in the form that steps receive. A step with a second required argument
                receives a `_BatchIndex` as well.
        """
        step = getattr(model, name)
        parameters = inspect.signature(step).parameters.values()
        several = sum(p.default is p.empty for p in parameters) > 1
        return step(given, self._batch_index) if several else step(given)

    def find_label_shape(self, model: nn.Module, batch: Tensors) -> None:
        """Do nothing: the shape of the labels is the user's choice."""

    def found_rows(self, has_rows: Sequence[bool]) -> None:
        """Do nothing: to compare parts of a batch, the model is run on each part here.

        Only `ForwardSteps` splits the outputs for the whole batch instead, and needs `has_rows`.
        """

    def _loss_in(self, returned: Any, step: str) -> torch.Tensor:
        loss = _loss_of(returned)
        if loss is None:
            raise DefinitionError(
                f"{self._definition.where('loss')}: {step}() returned {_described(returned)}; "
                "expected the loss of the batch, a tensor, or a dict with 'loss'. A batch cannot "
                "be left out by returning None: its records count as trained."
            )
        return loss

    @contextmanager
    def _attached(
        self, model: nn.Module, step: str, so_far: MetricStates | None = None
    ) -> Iterator[_Logged]:
        """Context manager in whose block the module has `self.log` and `self.trainer`.

        Args:
            model: The module.
            step: Name of the step that runs in the block, such as `training_step`.
            so_far: States of the module's metrics before the step. None: reset the metrics.

        Yields:
            The object that records what the module logs.
        """
        for metric in self._metrics_in(model):
            metric.begin(step, so_far)
        logged = _Logged(str(self._definition.origin), step)
        # Attributes of the object hide those of the class. They are removed again, so that a copy
        # or a digest of the module contains only the module.
        mine = vars(model)
        mine.update(log=logged.log, log_dict=logged.log_dict)
        mine["_trainer"] = self._progress
        try:
            yield logged
        finally:
            del mine["log"], mine["log_dict"]
            mine["_trainer"] = None

    def _metrics_in(self, model: nn.Module) -> Sequence[LoggedMetric]:
        """Return the `LoggedMetric`s of a module; the result for the last module is cached."""
        if self._looked_at is not model:
            self._looked_at, self._metrics = model, list(metrics_in(model))
        return self._metrics


class _BatchIndex:
    """The `batch_idx` argument of a step, which rejects any use of its value.

    Workers share an epoch, so a batch has no index that is the same on each of them.
    """

    def __init__(self, origin: object) -> None:
        self._origin = origin

    def _refuse(self, *args: object) -> NoReturn:
        del args
        raise DefinitionError(
            f"{tracebacks.calling_at(self._origin)}: a step uses batch_idx. Workers share the "
            "batches of an epoch, so they have no index that is the same on all of them. Use "
            "self.global_step, the number of updates."
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = _refuse
    __int__ = __index__ = __float__ = __bool__ = __hash__ = _refuse
    __str__ = __format__ = _refuse


class _Logged:
    """Records the values and metrics that a LightningModule's step logs during one batch.

    Args:
        where: Prefix for error messages.
        step: Name of the step.

    Attributes:
        metrics: Logged name -> metric.
        by_step: See `LightningSteps`.
    """

    def __init__(self, where: str, step: str) -> None:
        self._where, self._step = where, step
        self.by_step: dict[str, str] = {}
        self.metrics: dict[str, StatefulMetric] = {}
        self._values: dict[str, tuple[Any, int | None]] = {}

    def log(
        self,
        name: str,
        value: Any,
        *args: Any,
        reduce_fx: Any = "mean",
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Record a value; see `LightningModule.log`.

        Raises:
            DefinitionError: The value is neither a number nor a metric, or its reduction is not a
                mean.
        """
        if unknown := kwargs.keys() - _LOG_OPTIONS:
            raise self._error(
                f"self.log({name!r}, {min(unknown)}=...): there is no such option of log()."
            )
        reported = split_stage(name)[1]
        on_epoch = kwargs.get("on_epoch", args[_ON_EPOCH] if len(args) > _ON_EPOCH else None)
        if not on_epoch and self._step == "training_step":
            self.by_step[reported] = name
        if isinstance(value, LoggedMetric):
            if reported == "loss":
                raise self._error(
                    f"self.log({name!r}, ...) logs a metric as the loss. Log the loss of the batch "
                    "itself, which is averaged over examples; or give the metric another name."
                )
            value.logged(self._step, reported)
            self.metrics[reported] = value.states
            return
        if reduce_fx not in (*_MEANS, torch.mean):
            raise self._error(
                f"self.log({name!r}, reduce_fx={reduce_fx!r}): logged values are reported as means "
                "over examples. Leave out reduce_fx."
            )
        if not isinstance(value, (int, float, torch.Tensor)):
            raise self._error(
                f"self.log({name!r}, {_described(value)}): expected a number or a tensor with one "
                "element."
            )
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise self._error(
                f"self.log({name!r}, ...): the tensor has the shape {list(value.shape)}; expected "
                "one number."
            )
        self._values[reported] = value, batch_size

    def log_dict(self, values: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        """Record several values; see `LightningModule.log_dict`."""
        for name, value in values.items():
            self.log(name, value, *args, **kwargs)

    def addends(self, num_examples: int) -> Addends:
        """Return the recorded values by name, as (total, count); total / count is the mean.

        Args:
            num_examples: Weight of a value, unless it was logged with a `batch_size`.
        """
        addends: Addends = {}
        for name, (value, batch_size) in self._values.items():
            count = float(batch_size or num_examples)
            number = torch.as_tensor(value).detach().reshape(()).to(torch.float64)
            addends[name] = number * count, count
        return addends

    def _error(self, problem: str) -> DefinitionError:
        return DefinitionError(f"{tracebacks.calling_at(self._where)}: in {self._step}, {problem}")


def _joined(batch: Tensors) -> Any:
    """Return a batch as the argument of a step: `(features, labels, weights)`.

    Missing parts are left out; features alone are not in a tuple.
    """
    parts = [batch.features, batch.labels, batch.weights]
    while len(parts) > 1 and parts[-1] is None:
        parts.pop()
    return parts[0] if len(parts) == 1 else tuple(parts)


def _has(model: nn.Module, name: str) -> bool:
    """Return whether a module overrides the method `name` of LightningModule."""
    method = getattr(type(model), name, None)
    return str(getattr(method, "__module__", "lightning")).partition(".")[0] not in _LIGHTNING


def _loss_of(returned: Any) -> torch.Tensor | None:
    if isinstance(returned, Mapping):
        returned = returned.get("loss")
    return returned if isinstance(returned, torch.Tensor) else None


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of the shape {list(value.shape)}"
    kind = type(value)
    return "None" if value is None else f"a {kind.__module__}.{kind.__name__}"
