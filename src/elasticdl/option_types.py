"""Types of the keyword arguments of `train`, `evaluate` and `predict`, for editors and `help`.

Every value may also be a string, as on the command line. `job_options.py` documents the options
and has their defaults; `tests/test_option_types.py` checks that both modules name the same options.

Callers: `api.py`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from elasticdl.job import TrainingOptions

_Function = TypeVar("_Function", bound=Callable[..., Any])


class SharedOptions(TypedDict, total=False):
    """Options that `train`, `evaluate` and `predict` share."""

    minibatch_size: int | str
    batch_size: int | str
    num_workers: int | str | None
    ray_address: str | None
    give_up_after: float | str


class EvaluateOptions(SharedOptions, total=False):
    """Options that `evaluate` takes as `**options`; see `job_options.evaluation_job`."""

    validation_split: float | str | None
    report: str | Path | bool | None


class PredictOptions(SharedOptions, total=False):
    """Options that `predict` takes as `**options`; see `job_options.prediction_job`."""

    format: str | None
    columns: str | Sequence[str]


class TrainOptions(SharedOptions, total=False):
    """Options that `train` takes as `**options`; see `job_options.training_job`."""

    validation_split: float | str | None
    spec: str | Path | None
    dialect: str | None
    input_fn: str | None
    loss: str | None
    optimizer: str | None
    eval_metrics_fn: str | None
    num_spare_workers: int | str
    gpus_per_worker: int | str
    heartbeat_timeout: float | str
    join_timeout: float | str
    batch_timeout: float | str
    sum_timeout: float | str
    transfer_timeout: float | str
    priority: str
    skip_bad_records: bool | str
    tracking_uri: str | Path | None
    experiment: str | None
    run_name: str | None
    tensorboard: bool | str
    engine: str | None
    num_epochs: int | str
    seed: int | str
    shuffle: bool | str
    max_steps: int | str
    evaluation_steps: int | str
    checkpoint_steps: int | str
    keep_checkpoint_max: int | str
    deterministic: bool | str
    global_batch_size: int | str
    best_metric: str
    best_mode: str
    restore_best_weights: bool | str


class _Shown(str):
    """A type annotation stored as a string, which `help` shows without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def shows_options_of(job_function: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Decorator factory: document each option that a function accepts through `**options`.

    The decorated function gets a signature and a docstring that list all options, so that `help`
    and editors show them.

    Args:
        job_function: Function to which the decorated function passes its `**options`. If it has
            `**options` itself, these are the fields of `TrainingOptions`.
    """

    def decorate(function: _Function) -> _Function:
        own = inspect.signature(function).parameters
        options = inspect.signature(job_function).parameters
        keyword = inspect.Parameter.KEYWORD_ONLY
        of_training = {
            each.name: inspect.Parameter(
                each.name, keyword, default=each.default, annotation=each.type
            )
            for each in dataclasses.fields(TrainingOptions)
            if any(option.kind is option.VAR_KEYWORD for option in options.values())
        }
        merged = {**own, **{name: each for name, each in options.items() if name not in own}}
        merged |= {name: each for name, each in of_training.items() if name not in merged}
        shown = [
            each.replace(annotation=_Shown(each.annotation))
            for each in merged.values()
            if each.kind is keyword
        ]
        returned = inspect.signature(function).return_annotation
        signature = inspect.Signature(shown, return_annotation=_Shown(returned))
        function.__signature__ = signature  # type: ignore[attr-defined]
        described = {
            **_described(TrainingOptions, "Attributes"),
            **_described(job_function, "Args"),
        }
        lines = [described[name] for name in merged if name not in own and name in described]
        function.__doc__ = re.sub(
            r"\n *\*\*options: .*",
            "\n" + "\n".join(lines).replace("\\", r"\\"),
            function.__doc__ or "",
        )
        return function

    return decorate


def _described(documented: Any, section: str) -> dict[str, str]:
    """Return the entries of a docstring's section, to insert them into another docstring.

    Args:
        documented: A class or function.
        section: `Args` or `Attributes`.

    Returns:
        Name of an argument or attribute -> its lines, indented as in `function.__doc__`.
    """
    text = f"{inspect.getdoc(documented)}\n"
    found = re.search(rf"^{section}:\n(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    entries = re.findall(
        r"^ {4}(\w+): (.*\n(?: {8}.*\n|\n)*)", found[1] if found else "", re.MULTILINE
    )
    return {name: " " * 8 + f"{name}: " + _indented(body) for name, body in entries}


def _indented(body: str) -> str:
    first, *others = body.rstrip().split("\n")
    return "\n".join([first, *(f"    {line}" for line in others)])
