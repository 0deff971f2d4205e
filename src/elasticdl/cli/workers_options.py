"""Decorators that add the options of workers (`--num_workers`, `--ray_address`, ...) to a command.

One is for commands that train, the other for `evaluate` and `predict`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from elasticdl.cli.options import with_options
from elasticdl.job import Workers

_Command = TypeVar("_Command", bound=Callable[..., Any])


def training_workers_options(command: _Command) -> _Command:
    """Decorator: add `--num_workers`, `--num_spare_workers` and `--ray_address`, for training."""
    return with_options(
        command,
        click.option(
            "--num_workers",
            metavar="N|MIN..MAX",
            help="Number of training processes (workers): 3, or 2..4. A lost worker is replaced "
            "while the others continue.",
        ),
        click.option(
            "--num_spare_workers",
            default=Workers.spare,
            show_default=True,
            help="Standby processes, which replace a lost worker immediately.",
        ),
        click.option(
            "--ray_address",
            metavar="ADDRESS",
            help="Ray cluster to use. [default: start Ray on this machine]",
        ),
    )


def workers_options(command: _Command) -> _Command:
    """Decorator: add `--num_workers`, `--ray_address` and `--give_up_after`.

    It is for `evaluate` and `predict`, whose workers divide the records among them.
    """
    return with_options(
        command,
        click.option(
            "--num_workers",
            metavar="N",
            help="Number of processes that divide the records. The work of a lost process is done "
            "by another.",
        ),
        click.option(
            "--ray_address",
            metavar="ADDRESS",
            help="Ray cluster to use; its machines must be able to read --data. [default: start "
            "Ray on this machine]",
        ),
        click.option(
            "--give_up_after",
            metavar="SECONDS",
            default=Workers.give_up_after_s,
            show_default=True,
            help="Fail if no worker has made progress for this long.",
        ),
    )
