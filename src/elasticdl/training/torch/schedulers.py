"""Steps the learning rate schedulers of a model file, and saves and restores their state.

`lr_scheduler(optimizer)` returns a scheduler of `torch.optim.lr_scheduler`, or a dict with one, in
Lightning's format, or a list of either:

    {"scheduler": ..., "interval": "epoch", "frequency": 1, "monitor": "val_loss"}

`interval` is "epoch" (the default) or "step": a scheduler steps after the validation of every
`frequency`th epoch, or after every `frequency`th update of an epoch, as in Lightning. `monitor`
names the metric that a ReduceLROnPlateau observes. OneCycleLR and CyclicLR are meant to step after
each update, so they need an explicit interval: the default would be wrong.

Schedulers count updates of the job, whatever the number of workers, and their state is the same on
each worker.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch.optim import Optimizer, lr_scheduler

from elasticdl.did_you_mean import did_you_mean
from elasticdl.errors import (
    DefinitionError,
    ElasticDLError,
    UserCodeError,
    raised_at,
    users_traceback,
)
from elasticdl.training.metric_direction import direction_by_name
from elasticdl.training.monitors import Monitor
from elasticdl.training.torch.function_memory import FunctionMemory
from elasticdl.training.torch.one_cycle import holding_ended, one_cycles
from elasticdl.training.torch.scheduler_trial import failure, loses_state
from elasticdl.training.torch.value_codec import Codec, UnkeepableValueError

if TYPE_CHECKING:
    from torch import nn

    from elasticdl.definition import ModelDefinition

_CLASS, _FUNCTIONS = "class", "functions/"
_log = logging.getLogger("elasticdl")

# Part of the steps of a OneCycleLR, after which its learning rate is a few percent of the highest.
_NEARLY_ALL = 0.9
_KEYS = ("scheduler", "interval", "frequency", "monitor")
_COUNT_UPDATES = (lr_scheduler.OneCycleLR, lr_scheduler.CyclicLR)
_METHODS = ("step", "state_dict", "load_state_dict")
# Start of the message of a OneCycleLR that makes more steps than it has.
_TOO_MANY_STEPS = "Tried to step "
_EXAMPLE = '{"scheduler": scheduler, "interval": "step"}'


@dataclass(frozen=True, eq=False)
class _Schedule:
    """A scheduler and when to step it, with the option names of Lightning's dict."""

    scheduler: Any
    interval: Literal["step", "epoch"] = "epoch"
    frequency: int = 1
    monitor: str = ""

    def num_steps(self, count: int, in_an_epoch: int | None) -> int:
        """Return how often the scheduler steps in `count` updates or epochs, as its interval says.

        Args:
            count: Number of updates or epochs.
            in_an_epoch: Number of updates in an epoch; None if unknown.
        """
        if self.interval == "epoch" or not in_an_epoch:
            return count // self.frequency
        whole, rest = divmod(count, in_an_epoch)
        return whole * (in_an_epoch // self.frequency) + rest // self.frequency


def _class_of(schedule: _Schedule) -> str:
    return type(schedule.scheduler).__name__


class Schedulers:
    """Steps the schedulers of a model file, and saves and restores their state.

    Args:
        definition: Definition of the model, which creates the schedulers.
        optimizer: The optimizer whose learning rates they set. It must not have been restored from
            a checkpoint yet.
        parameters: The model's parameters, by name.
        model: The model.

    Attributes:
        by_step: Reported name -> logged name, of values that a LightningModule logs in training
            without `on_epoch`.

    Raises:
        DefinitionError: A created object is not a scheduler of that optimizer, or has state that
            checkpoints cannot contain.
        UserCodeError: The user's function raised.
    """

    def __init__(
        self,
        definition: ModelDefinition,
        optimizer: Optimizer,
        parameters: Mapping[str, nn.Parameter],
        model: nn.Module,
    ) -> None:
        self._where = definition.where("lr_scheduler")
        self._optimizer = optimizer
        self._codec = Codec(parameters)
        made = definition.create_lr_schedulers
        self._schedules = [] if made is None else self._read(made(optimizer))
        known = [optimizer, *model.modules()]
        self._memories = [
            FunctionMemory(_functions_of(each.scheduler), self._codec, known=known)
            for each in self._schedules
        ]
        self._loaded = False
        self.by_step: Mapping[str, str] = {}
        # The intervals of schedules that keep their last learning rate after their last step.
        self._held_intervals: set[str] = set()
        self._num_held = 0
        # id() of a OneCycleLR that training, if it is not stopped early, outlasts -> the error.
        self._outlasted: dict[int, str] = {}
        self.state()

    def __bool__(self) -> bool:
        """Return whether the model file has any schedulers."""
        return bool(self._schedules)

    def check_monitored(self) -> None:
        """Reject a ReduceLROnPlateau for a metric that Lightning measures on an epoch's last batch.

        Raises:
            DefinitionError: A step logs the monitored metric without `on_epoch`.
        """
        for name in self.monitored.keys() & self.by_step.keys():
            logged = self.by_step[name]
            raise self._error(
                f"ReduceLROnPlateau monitors {logged!r}, which training_step logs without "
                "on_epoch=True. Lightning would monitor the value of each epoch's last batch; "
                "here, a logged value is the mean of the epoch.",
                f"Log the mean for both: self.log({logged!r}, ..., on_epoch=True).",
            )

    def check_length(
        self,
        num_updates: int | None,
        num_epochs: int | None,
        num_steps: int | None,
        *,
        may_end_earlier: bool = False,
    ) -> None:
        """Reject a OneCycleLR that has fewer steps than the training needs.

        On workers, the number of updates may be unknown, because it depends on how many workers
        live. A job must not fail because one was lost. A OneCycleLR that steps per update is then
        not rejected, but keeps its last learning rate once it has ended. The same holds for one
        that steps per epoch, if the number of epochs is unknown.

        Args:
            num_updates: Total number of updates in the run; None if unknown.
            num_epochs: Total number of complete epochs in the run; None if unknown.
            num_steps: Number of updates in an epoch; None if unknown.
            may_end_earlier: Whether a callback may stop the training before the schedule has ended.
                If so, a schedule that is too short is not rejected now: the training fails only
                when it needs a further step.

        Raises:
            DefinitionError: A OneCycleLR has fewer steps than the run, so PyTorch would raise an
                error after the last one.
        """
        counts = {"step": num_updates, "epoch": num_epochs}
        self._held_intervals = {interval for interval, count in counts.items() if count is None}
        for schedule in self._schedules:
            count = counts[schedule.interval]
            if count is None:
                continue
            made = schedule.num_steps(count, num_steps)
            for one, needed in one_cycles(schedule.scheduler, made):
                if one.total_steps >= needed:
                    continue
                if not may_end_earlier:
                    raise self._too_long(one, schedule, needed, count)
                error = self._too_long(one, schedule, needed, count, has_begun=True)
                self._outlasted[id(one)] = str(error)

    def note_unfinished(
        self, num_updates: int | None, num_epochs: int | None, num_steps: int | None
    ) -> None:
        """Warn of a OneCycleLR that has more steps than the training makes.

        It does not reach its end, where the learning rate is low. Call this when a training begins,
        not when one is resumed, because the number of epochs may have been raised since. There is
        no warning for a OneCycleLR in a SequentialLR that switches to the next scheduler anyway.

        Args:
            num_updates: Total number of updates in the run; None if unknown.
            num_epochs: Total number of complete epochs in the run; None if unknown.
            num_steps: Number of updates in an epoch; None if unknown.
        """
        counts = {"step": num_updates, "epoch": num_epochs}
        for schedule in self._schedules:
            count = counts[schedule.interval]
            if count is None:
                continue
            total = schedule.num_steps(count, num_steps)
            with_one_more = one_cycles(schedule.scheduler, total + 1)
            for (one, made), (_, more) in zip(
                one_cycles(schedule.scheduler, total), with_one_more, strict=True
            ):
                if 0 < made < more and made < _NEARLY_ALL * one.total_steps:
                    _log.warning(
                        "%s: OneCycleLR has %s steps, and the training %s, so the schedule does "
                        "not reach its end. Set total_steps=%d, or train longer.",
                        self._where,
                        f"{one.total_steps:,}",
                        _length(schedule, made, count),
                        made,
                    )

    def note_idle_epoch(self) -> None:
        """Warn of a warm-up that starts at 0 and steps per epoch: nothing is learned in epoch 1.

        Call it when a training begins, not when one is resumed. There is no warning if the
        optimizer's own learning rate is 0, because then the schedule is not the cause.
        """
        by_epoch = [each.scheduler for each in self._schedules if each.interval == "epoch"]
        groups = self._optimizer.param_groups
        is_own = all(float(group.get("initial_lr", 1)) == 0 for group in groups)
        if by_epoch and not is_own and all(float(group["lr"]) == 0 for group in groups):
            _log.warning(
                "%s: the learning rate is 0 in the first epoch, in which nothing is learned: %s "
                "steps after each epoch. To step it after each update, return %s.",
                self._where,
                type(by_epoch[0]).__name__,
                _EXAMPLE,
            )

    def note_wrong_mode(self) -> None:
        """Warn of a ReduceLROnPlateau with mode="min" for a metric whose high values are better.

        "min" is the default, and a rising accuracy then counts as a plateau. Call it when a
        training begins, not when one is resumed.
        """
        for schedule in self._schedules:
            is_lowest = getattr(schedule.scheduler, "mode", "") == "min"
            name = schedule.monitor.removeprefix("val_")
            if is_lowest and direction_by_name(name) == "max":
                _log.warning(
                    '%s: %s monitors %r with mode="min", its default, so it lowers the learning '
                    'rate while the metric rises. If high values are better, add mode="max".',
                    self._where,
                    _class_of(schedule),
                    schedule.monitor,
                )

    @property
    def monitored(self) -> Mapping[str, Monitor]:
        """Name of each monitored metric -> the scheduler, for errors."""
        return {
            schedule.monitor.removesuffix("_epoch"): Monitor(
                f"{self._where}: {type(schedule.scheduler).__name__}"
            )
            for schedule in self._schedules
            if schedule.monitor
        }

    def of_updates(self) -> str:
        """Return `file:line` and class of a schedule with interval "step"; empty if none has it."""
        found = (_class_of(schedule) for schedule in self._schedules if schedule.interval == "step")
        return next((f"{self._where}: {name}" for name in found), "")

    def updated(self, num_updates: int) -> None:
        """Step the schedulers with interval "step", after an update.

        Args:
            num_updates: Number of updates in this epoch so far. Lightning counts `frequency` within
                the epoch, too.
        """
        for schedule in self._schedules:
            if schedule.interval == "step" and num_updates % schedule.frequency == 0:
                self._step(schedule)

    def epoch_ended(self, epoch: int, metrics: Mapping[str, Any]) -> None:
        """Step the schedulers with interval "epoch", after an epoch and its validation.

        Args:
            epoch: The epoch, from 0.
            metrics: The measured values: `loss`, `val_loss`, ...

        Raises:
            DefinitionError: A scheduler monitors a metric that was not measured.
        """
        for schedule in self._schedules:
            if schedule.interval == "step" or (epoch + 1) % schedule.frequency:
                continue
            if not schedule.monitor:
                self._step(schedule)
                continue
            monitored = schedule.monitor
            if monitored not in metrics:
                # Lightning's name for a value that a step logs both by step and by epoch.
                monitored = monitored.removesuffix("_epoch")
            if monitored not in metrics:
                raise DefinitionError(
                    f"{self._where}: {type(schedule.scheduler).__name__} monitors "
                    f"{schedule.monitor!r}, which was not measured in epoch {epoch + 1} "
                    f"(measured: {', '.join(sorted(metrics))})"
                    f"{_instead_of(monitored, metrics)}"
                )
            self._step(schedule, float(metrics[monitored]))

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the state of the schedulers; empty if there are none.

        Raises:
            DefinitionError: A scheduler has state that cannot be stored.
        """
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        for number, schedule in enumerate(self._schedules):
            try:
                kept = self._codec.to_arrays(dict(schedule.scheduler.state_dict()))
                of_functions = self._memories[number].state()
            except UnkeepableValueError as error:
                raise DefinitionError(
                    f"{self._where}: {type(schedule.scheduler).__name__} keeps {error}, which no "
                    "checkpoint can store, so a resumed training would continue differently. Give "
                    "it functions without state, and otherwise numbers, strings and tensors."
                ) from error
            kept |= {f"{_FUNCTIONS}{name}": array for name, array in of_functions.items()}
            arrays |= {f"{number}/{name}": array for name, array in kept.items()}
            arrays[f"{number}/{_CLASS}"] = np.frombuffer(_class_of(schedule).encode(), np.uint8)
        return arrays

    @property
    def remembered(self) -> list[Any]:
        """Objects of the user's code that hold state of functions that schedulers call.

        Such as a list that a lambda appends to. Checkpoints store their contents, so
        `engines/file_variables.py` need not warn if they change.
        """
        return [each for memory in self._memories for each in memory.objects]

    def load(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
        """Restore a state; if it does not match, change nothing and return a line per mismatch."""
        by_number: dict[int, dict[str, np.ndarray[Any, Any]]] = {}
        for path, array in arrays.items():
            of, _, name = path.partition("/")
            by_number.setdefault(int(of), {})[name] = array
        if len(by_number) != len(self._schedules):
            return [f"{len(by_number)} in the checkpoint, {len(self._schedules)} in the model file"]
        problems = []
        for number, schedule in enumerate(self._schedules):
            kind, mine = by_number[number].pop(_CLASS).tobytes().decode(), _class_of(schedule)
            if kind != mine:
                problems.append(f"{number}: {kind} in the checkpoint, {mine} in the model file")
        if problems:
            return problems
        for number, schedule in enumerate(self._schedules):
            saved = by_number[number]
            of_functions = {
                path.removeprefix(_FUNCTIONS): saved.pop(path)
                for path in list(saved)
                if path.startswith(_FUNCTIONS)
            }
            schedule.scheduler.load_state_dict(self._codec.to_values(saved))
            self._memories[number].load(of_functions)
        self._loaded = True
        # A scheduler whose first step is the first action of a resumed job, at the end of an epoch,
        # would warn that the optimizer has made no step.
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001
        return []

    def _step(self, schedule: _Schedule, *monitored: float) -> None:
        scheduler = schedule.scheduler
        held: list[lr_scheduler.OneCycleLR] = []
        try:
            with contextlib.ExitStack() as stack:
                if schedule.interval in self._held_intervals:
                    held = stack.enter_context(holding_ended(scheduler))
                scheduler.step(*monitored)
        except Exception as error:
            # With another error, a OneCycleLR in it may have made all its steps, too.
            has_ended = str(error).startswith(_TOO_MANY_STEPS)
            if has_ended and (too_short := self._too_short(scheduler)):
                # A UserCodeError would name the records of the batch, which are not the cause.
                raise DefinitionError(too_short) from error
            raise UserCodeError(
                f"{raised_at(error, self._where)}: step() of {type(scheduler).__name__} raised:\n"
                f"{users_traceback(error)}"
            ) from error
        if held:
            self._note_held(held[0], schedule)

    def _note_held(self, one: lr_scheduler.OneCycleLR, schedule: _Schedule) -> None:
        self._num_held += 1
        # A schedule that fits is held after the last update.
        if self._num_held == 2:  # noqa: PLR2004
            why = (
                "On workers, an update uses one minibatch of each live worker, so a lost worker "
                "makes more updates. Their number is fixed only with --global_batch_size."
                if schedule.interval == "step"
                else "It steps after each epoch."
            )
            _log.warning(
                "%s: OneCycleLR has made all its %s steps: from here on, it keeps its last "
                "learning rate, %.4g. %s",
                self._where,
                f"{one.total_steps:,}",
                float(one.get_last_lr()[0]),
                why,
            )

    def _too_long(
        self,
        one: lr_scheduler.OneCycleLR,
        schedule: _Schedule,
        needed: int,
        count: int,
        *,
        has_begun: bool = False,
    ) -> ElasticDLError:
        """Return the error for a training that needs more steps than a OneCycleLR has.

        Args:
            one: The OneCycleLR.
            schedule: The schedule of the model file that contains it.
            needed: Number of steps that the training needs of it.
            count: Number of updates or epochs of the training, as the interval says.
            has_begun: Whether the error will be raised in the middle of the training.
        """
        is_each_epoch = schedule.interval == "epoch" and schedule.frequency == 1
        when = " and steps after each epoch" if is_each_epoch else ""
        length = _length(schedule, needed, count)
        if self._loaded:
            return DefinitionError(
                f"{self._where}: lr_scheduler(): the training {length}, and OneCycleLR has "
                f"{one.total_steps:,} steps in the checkpoint. A resumed training keeps "
                "the schedule of its checkpoint, whatever total_steps is in the file now. Train "
                "for fewer epochs, or start a new training: choose another --output."
            )
        longer = f"Set total_steps={needed}"
        if has_begun:
            longer += (
                " and choose another --output (a resumed training keeps the schedule of its "
                "checkpoint)"
            )
        return self._error(
            f"OneCycleLR has {one.total_steps:,} steps{when}, and the training {length}.",
            f"{longer}, or train for fewer epochs.",
        )

    def _too_short(self, scheduler: Any) -> str:
        """Return the error of a `step()` that failed because a OneCycleLR has ended.

        The result is "" if `scheduler` contains no OneCycleLR that has made all its steps.
        """
        ended = [one for one, _ in one_cycles(scheduler, 0) if one.last_epoch >= one.total_steps]
        if not ended:
            return ""
        if id(ended[0]) in self._outlasted:
            return self._outlasted[id(ended[0])]
        return (
            f"{self._where}: lr_scheduler(): OneCycleLR has {ended[0].total_steps} steps, and the "
            "training makes more of them: the number of minibatches in an epoch, times "
            "--num_epochs. On workers, an update uses one minibatch of each live worker, so the "
            "number of updates is fixed only with --global_batch_size: the number of records, "
            "divided by it and rounded up, times --num_epochs. A resumed training keeps the "
            "schedule of its checkpoint: for a longer one, choose another --output."
        )

    # --- what the user's function returns -----------------------------------------------------

    def _read(self, returned: Any) -> list[_Schedule]:
        several = returned if isinstance(returned, (list, tuple)) else [returned]
        if any(isinstance(each, (list, tuple, Optimizer)) for each in several):
            contents = " and ".join(map(_described, several))
            what = (
                contents
                if several is not returned
                else f"a {type(returned).__name__} of {contents}"
            )
            raise self._error(
                f"it returned {what}, which is not a scheduler or a list of schedulers.",
                "Return the scheduler only, without the optimizer, such as return "
                "torch.optim.lr_scheduler.StepLR(optimizer, 30), or a list of several schedulers.",
            )
        schedules = [self._read_one(each) for each in several]
        for schedule in schedules:
            self._check_step(schedule.scheduler)
            self._check_state(schedule.scheduler)
        return schedules

    def _check_step(self, scheduler: Any) -> None:
        # The schedulers within one that combines several may make their first step much later. They
        # are tried before it, because its error would not name them.
        for each in reversed([*_all(scheduler)]):
            if problem := failure(each, self._optimizer):
                raise self._error(
                    f"step() of {type(each).__name__}, tried before training, failed: {problem}.",
                    "Correct the options of this scheduler.",
                )

    def _check_state(self, scheduler: Any) -> None:
        if loses_state(scheduler, self._optimizer):
            raise self._error(
                f"state_dict() of {type(scheduler).__name__} omits what step() uses: another "
                "scheduler that loads it sets other learning rates, so a resumed training would "
                "continue differently.",
                "Return all attributes that step() changes. A class derived from "
                "torch.optim.lr_scheduler.LRScheduler does so without a state_dict() of its own.",
            )

    def _read_one(self, returned: Any) -> _Schedule:
        config = dict(returned) if isinstance(returned, Mapping) else {"scheduler": returned}
        if unknown := [key for key in config if key not in _KEYS]:
            raise self._error(
                f"{unknown[0]!r} is not an option of a scheduler.",
                f"Expected {', '.join(_KEYS)}.",
            )
        scheduler: Any = config.get("scheduler")
        # Libraries have schedulers that are not derived from PyTorch's.
        has_all = all(callable(getattr(scheduler, name, None)) for name in _METHODS)
        if not has_all or isinstance(scheduler, (Optimizer, type)):
            raise self._error(
                f"it returned {_described(scheduler)}, which is not a scheduler.",
                "Return one of torch.optim.lr_scheduler, such as StepLR(optimizer, 30), or an "
                "object with step(), state_dict() and load_state_dict().",
            )
        is_plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
        if not is_plateau and (missing := _required(scheduler.step)):
            raise self._error(
                f"step() of {type(scheduler).__name__} needs {missing!r}, but schedulers here step "
                "without arguments.",
                "Return one of torch.optim.lr_scheduler, or derive a class whose step() counts "
                "by itself.",
            )
        if getattr(scheduler, "optimizer", self._optimizer) is not self._optimizer:
            raise self._error(
                f"{type(scheduler).__name__} is for another optimizer.",
                "Create it for the argument: def lr_scheduler(optimizer).",
            )
        interval = config.get("interval", "")
        if interval not in ("", "step", "epoch"):
            raise self._error(f"the interval is {interval!r}.", 'Expected "step" or "epoch".')
        counts_updates = next((s for s in _all(scheduler) if isinstance(s, _COUNT_UPDATES)), None)
        if not interval and counts_updates is not None:
            raise self._error(
                f"{type(counts_updates).__name__} usually steps after each update, but without an "
                "interval it steps after each epoch.",
                f'Set it: return {_EXAMPLE} (or "epoch").',
            )
        frequency = config.get("frequency", 1)
        if type(frequency) is not int or frequency < 1:
            raise self._error(
                f"the frequency is {frequency!r}.", "Expected a whole number above 0."
            )
        monitor = config.get("monitor") or ("val_loss" if is_plateau else "")
        if not is_plateau:
            monitor = ""
        if is_plateau and interval == "step":
            raise self._error(
                f"ReduceLROnPlateau monitors {monitor!r}, which is measured once per epoch.",
                'Let it step once per epoch: {"scheduler": scheduler, "interval": "epoch"}.',
            )
        return _Schedule(scheduler, interval or "epoch", frequency, monitor)

    def _error(self, problem: str, way_out: str) -> ElasticDLError:
        return DefinitionError(f"{self._where}: lr_scheduler(): {problem} {way_out}")


def _length(schedule: _Schedule, num_steps: int, count: int) -> str:
    """Return a phrase that follows "the training" in a message, such as "makes 500 updates".

    Args:
        schedule: The schedule, whose interval says whether updates or epochs are counted.
        num_steps: Number of steps that the training makes of a OneCycleLR.
        count: Number of updates or epochs of the training. If it is another number, the phrase
            mentions both.
    """
    in_part = "" if num_steps == count else f", which take {num_steps:,} of its steps"
    if schedule.interval == "epoch":
        return f"has {count:,} epoch{'s' if count > 1 else ''}{in_part}"
    return f"makes {count:,} updates{in_part}"


def _instead_of(monitored: str, measured: Iterable[str]) -> str:
    """Return advice on a monitored metric that was not measured, such as "; did you mean ...?"."""
    if (validated := f"val_{monitored}") in measured:
        return f"; did you mean {validated!r}?"
    if not any(name.startswith("val_") for name in measured):
        also = "" if monitored.startswith("val_") else f" and monitor {validated!r}"
        return (
            ". Give --validation_data or --validation_split (with --evaluation_steps of at most "
            f"one epoch, if set){also}, or monitor another metric: "
            '{"scheduler": scheduler, "monitor": "loss"}.'
        )
    return f"{did_you_mean(monitored, measured)} Monitor one that is measured."


def _all(scheduler: Any) -> Iterator[Any]:
    """Yield a scheduler, and the schedulers in it if it combines several."""
    yield scheduler
    if isinstance(scheduler, (lr_scheduler.SequentialLR, lr_scheduler.ChainedScheduler)):
        for each in scheduler._schedulers:  # noqa: SLF001 - no public name
            yield from _all(each)


def _functions_of(scheduler: Any) -> dict[str, Any]:
    """Return the user's functions that a scheduler calls and that its state does not contain.

    Callable objects are left out, because a scheduler's `state_dict()` has their attributes.
    """
    functions: dict[str, Any] = {}
    for each in _all(scheduler):
        lambdas = getattr(each, "lr_lambdas", None) or [getattr(each, "_scale_fn_custom", None)]
        functions |= {
            f"function {len(functions) + number}": function
            for number, function in enumerate(lambdas)
            if isinstance(function, (types.FunctionType, types.MethodType, functools.partial))
        }
    return functions


def _required(step: Callable[..., Any]) -> str:
    """Return the name of the first required argument of a scheduler's `step`; empty if none."""
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return ""
    without = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = (p.name for p in parameters if p.default is p.empty and p.kind not in without)
    return next(needed, "")


def _described(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__}"
    return f"an object of {type(value).__name__}"
