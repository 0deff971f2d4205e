"""Options and output functions that several commands share."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from elasticdl.cli.printable import echo
from elasticdl.data.stored_file import check_output
from elasticdl.engines.progress_bar import Silent, metric_in_words

_Command = TypeVar("_Command", bound=Callable[..., Any])


def with_options(command: _Command, *options: Callable[[_Command], _Command]) -> _Command:
    """Apply several `click.option` decorators to a command; its help lists them in this order."""
    return functools.reduce(lambda made, option: option(made), reversed(options), command)


def minibatch_size_option(**settings: Any) -> Callable[[_Command], _Command]:
    """Return the decorator for `--minibatch_size`, also called `--batch_size`.

    Args:
        settings: Settings of the option for `click.option`: help, default, type.
    """
    return click.option("--minibatch_size", "--batch_size", "minibatch_size", **settings)


def check_place(context: click.Context, option: click.Parameter, value: str) -> str:
    """Click callback: check the folder or URI given as an output, and return it.

    Raises:
        UsageError: It is empty, or is in the memory of this process, where output would be lost.
    """
    del context
    return check_output(value, option.opts[0])


def reporter_for(quiet: bool) -> Silent | None:
    """Return a reporter that prints nothing if `quiet`; otherwise None: `api` then chooses one."""
    return Silent() if quiet else None


def print_metrics(metrics: Mapping[str, Any], remark: str = "") -> None:
    """Print one metric per line, with names aligned, and a remark after each value."""
    width = max((len(name) for name in metrics), default=0)
    for name, value in metrics.items():
        # A number of records is written out.
        text = str(value) if isinstance(value, int) else metric_in_words(value, 6)
        echo(f"  {name:<{width}}  {text}{remark and f'  ({remark})'}")


def as_json_text(value: Any) -> str:
    """Format a value as JSON that every parser accepts: null replaces non-finite numbers.

    Example:
        >>> as_json_text({"loss": float("nan"), "all": [1, float("inf")]})
        '{"loss": null, "all": [1, null]}'
    """
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
