"""The steps of a LightningModule: `training_step`, `validation_step` and `predict_step`.

    batch                   what it is given: (features, labels), or the features alone where there
                            are no labels; sample weights come third
    training_step           returns the loss, or a dict with `loss`
    validation_step         returns a loss, or nothing; what it logs is what is measured
    predict_step            is given the features; without one of its own, `forward` is
    self.log, log_dict      a mean over the examples, of an epoch or of an evaluation

Names begin with the stage in most modules (`train_acc`, `val/loss`); here `val_` is put before
what an evaluation measures, so the stage is taken off first.

Lightning itself is not needed: a module knows nothing of the `Trainer` but what it asks of
`self.trainer`, and here that is a small object which knows the epoch and the step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn

from elasticdl.errors import DefinitionError
from elasticdl.training.metric_names import split_stage
from elasticdl.training.torch.steps import Stepped, Tensors, check_parts

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition
    from elasticdl.training.torch.inputs import Arguments
    from elasticdl.training.torch.losses import Loss
    from elasticdl.training.torch.metrics import Addends
    from elasticdl.training.torch.precision import MixedPrecision

_LIGHTNING = ("lightning", "pytorch_lightning")
_MEANS = ("mean", "avg")


class Progress:
    """What a module may ask of `self.trainer`.

    Args:
        origin: For errors.
        step: Returns the number of updates that were made.
        epoch: Returns the number of the epoch, from 0.

    Attributes:
        training: A training step is being made.
    """

    # What modules ask before they print.
    is_global_zero = True
    sanity_checking = False
    progress_bar_callback = None

    def __init__(self, origin: object, step: Callable[[], int], epoch: Callable[[], int]) -> None:
        self.training = False
        self._origin, self._step, self._epoch = origin, step, epoch

    @property
    def global_step(self) -> int:
        """Number of updates that were made."""
        return self._step()

    @property
    def current_epoch(self) -> int:
        """Number of the epoch, from 0."""
        return self._epoch()

    def __getattr__(self, name: str) -> NoReturn:
        """Say what is not there.

        Raises:
            AttributeError: For names that Python itself asks for.
            DefinitionError: For others.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        raise DefinitionError(
            f"{self._origin}: the module asks for self.trainer.{name}. There is no Trainer of "
            "Lightning here; self.trainer knows current_epoch and global_step. Make the number an "
            "argument of the module: --params=NAME=VALUE."
        )


class LightningSteps:
    """The steps that a LightningModule makes by itself; see `steps.Steps`.

    Args:
        definition: For errors.
        loss: Reads what a step returns.
        precision: What steps are computed in.
        looking: Runs the model in evaluation mode meanwhile, without a trace.
        progress: What the module may ask of its trainer.
    """

    def __init__(
        self,
        definition: ModelDefinition,
        loss: Loss,
        precision: MixedPrecision,
        looking: Callable[[], AbstractContextManager[Any]],
        progress: Progress,
    ) -> None:
        self._definition, self._loss = definition, loss
        self._precision, self._looking, self._progress = precision, looking, progress
        self._batch_index = _BatchIndex(definition.origin)

    def outputs(self, model: nn.Module, features: Any) -> Any:
        """See `Steps`."""
        with self._attached(model, "predict_step"), self._precision.autocast():
            return self._call(model, "predict_step", features)

    def training(self, model: nn.Module, batch: Tensors) -> Stepped:
        """See `Steps`.

        Raises:
            DefinitionError: The step returns no loss, or logs what is no mean.
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
        addends = logged.addends(batch.num_examples)
        addends.pop("loss", None)
        return Stepped(loss, None, addends)

    def evaluation(self, model: nn.Module, batch: Tensors) -> Stepped:
        """See `Steps`: what `validation_step` returns is the loss, else what it logs as one."""
        step = "validation_step" if _has(model, "validation_step") else "test_step"
        if not _has(model, step):
            raise DefinitionError(
                f"{self._definition.origin}: the module has no validation_step(), so nothing is "
                "measured on other data. Add it."
            )
        with self._attached(model, step) as logged, self._precision.autocast():
            returned = self._call(model, step, _joined(batch))
            loss = None
            if (value := _loss_of(returned)) is not None:
                loss = self._loss.computed(lambda: value, None, batch.num_examples)
        addends = logged.addends(batch.num_examples)
        if loss is not None:
            addends.pop("loss", None)
        return Stepped(loss, None, addends)

    def touch(self, model: nn.Module, batch: Tensors) -> Any:
        """See `Steps`."""
        with self._attached(model, "training_step"), self._precision.autocast():
            return self._call(model, "training_step", _joined(batch))

    def arguments(self, model: nn.Module, features: Any) -> Arguments | None:
        """See `Steps`."""
        return ((features,), {}) if _has(model, "forward") else None

    def check_evaluation(self, model: nn.Module, batch: Tensors) -> None:
        """See `Steps`."""
        if batch.num_examples:
            self.evaluation(model, batch)
        else:
            self.outputs(model, batch.features)

    def check_splits(self, model: nn.Module, batch: Tensors, stepped: Stepped) -> None:
        """See `Steps`: a training step is made of the whole and of parts, in evaluation mode."""
        del stepped
        check_parts(self, self._loss, self._looking, model, batch)

    def _call(self, model: nn.Module, name: str, given: Any) -> Any:
        """Call a step with what it takes: the batch, and its index if it wants one."""
        step = getattr(model, name)
        parameters = inspect.signature(step).parameters.values()
        several = sum(p.default is p.empty for p in parameters) > 1
        return step(given, self._batch_index) if several else step(given)

    def _loss_in(self, returned: Any, step: str) -> torch.Tensor:
        loss = _loss_of(returned)
        if loss is None:
            raise DefinitionError(
                f"{self._definition.where('loss')}: {step}() returned {_told(returned)}; expected "
                "the loss of the batch, a tensor, or a dict with 'loss'. A batch cannot be left "
                "out by returning None: its records count as trained."
            )
        return loss

    @contextmanager
    def _attached(self, model: nn.Module, step: str) -> Iterator[_Logged]:
        """Let `self.log` note, and `self.trainer` answer, until the step is over."""
        logged = _Logged(str(self._definition.origin), step)
        # As attributes of the object, which come before the class; nothing of it stays, so that
        # a copy or a digest of the module sees the module alone.
        mine = vars(model)
        mine.update(log=logged.log, log_dict=logged.log_dict)
        mine["_trainer"] = self._progress
        try:
            yield logged
        finally:
            del mine["log"], mine["log_dict"]
            mine["_trainer"] = None


class _BatchIndex:
    """What a step is given as `batch_idx`: it may be handed on, and not be computed with.

    Workers share an epoch, so a batch has no number in it that is the same on each of them.
    """

    def __init__(self, origin: object) -> None:
        self._origin = origin

    def _refuse(self, *args: object) -> NoReturn:
        del args
        raise DefinitionError(
            f"{self._origin}: a step uses batch_idx. Workers share the batches of an epoch, so "
            "they have no index that is the same on all of them. Use self.global_step, the number "
            "of updates."
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = _refuse
    __int__ = __index__ = __float__ = __bool__ = __hash__ = _refuse
    __str__ = __format__ = _refuse


class _Logged:
    """What one step logs."""

    def __init__(self, where: str, step: str) -> None:
        self._where, self._step = where, step
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
        """Note a value; see `LightningModule.log`.

        Raises:
            DefinitionError: It is no number, or is to be reduced otherwise than to a mean.
        """
        del args, kwargs
        if reduce_fx not in (*_MEANS, torch.mean):
            raise self._error(
                f"self.log({name!r}, reduce_fx={reduce_fx!r}): what steps log is reported as the "
                "mean over examples. Leave out reduce_fx."
            )
        if not isinstance(value, (int, float, torch.Tensor)):
            raise self._error(
                f"self.log({name!r}, {_told(value)}): expected a number or a tensor of one."
            )
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise self._error(
                f"self.log({name!r}, ...): the tensor has the shape {list(value.shape)}; expected "
                "one number."
            )
        self._values[split_stage(name)[1]] = value, batch_size

    def log_dict(self, values: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        """Note several values; see `LightningModule.log_dict`."""
        for name, value in values.items():
            self.log(name, value, *args, **kwargs)

    def addends(self, num_examples: int) -> Addends:
        """Return what was noted as addends of means.

        Args:
            num_examples: What a value counts as, unless it was logged with a `batch_size`.
        """
        addends: Addends = {}
        for name, (value, batch_size) in self._values.items():
            count = float(batch_size or num_examples)
            number = torch.as_tensor(value).detach().reshape(()).to(torch.float64)
            addends[name] = number * count, count
        return addends

    def _error(self, problem: str) -> DefinitionError:
        return DefinitionError(f"{self._where}: in {self._step}, {problem}")


def _joined(batch: Tensors) -> Any:
    """Return a batch as a step takes it: `(features, labels)`, or what of it is there."""
    parts = [batch.features, batch.labels, batch.weights]
    while len(parts) > 1 and parts[-1] is None:
        parts.pop()
    return parts[0] if len(parts) == 1 else tuple(parts)


def _has(model: nn.Module, name: str) -> bool:
    """Return whether a module has a step that is not Lightning's own."""
    method = getattr(type(model), name, None)
    return str(getattr(method, "__module__", "lightning")).partition(".")[0] not in _LIGHTNING


def _loss_of(returned: Any) -> torch.Tensor | None:
    if isinstance(returned, Mapping):
        returned = returned.get("loss")
    return returned if isinstance(returned, torch.Tensor) else None


def _told(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of the shape {list(value.shape)}"
    kind = type(value)
    return "None" if value is None else f"a {kind.__module__}.{kind.__name__}"
