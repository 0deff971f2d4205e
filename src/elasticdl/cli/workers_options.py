"""The options that say on which workers: of what trains, and of what shares records among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from elasticdl.cli.options import with_options
from elasticdl.job import Workers

_Command = TypeVar("_Command", bound=Callable[..., Any])


def training_workers_options(command: _Command) -> _Command:
    """Give a command the options for training on workers that come and go."""
    return with_options(
        command,
        click.option(
            "--num_workers",
            metavar="N|MIN..MAX",
            help="Train on so many processes: 3, or 2..4. One that dies is replaced, the others go "
            "on.",
        ),
        click.option(
            "--num_spare_workers",
            default=Workers.spare,
            show_default=True,
            help="Processes that stand ready, so that a replacement is there at once.",
        ),
        click.option(
            "--ray_address",
            metavar="ADDRESS",
            help="Use this Ray cluster; without it Ray starts here.",
        ),
    )


def workers_options(command: _Command) -> _Command:
    """Give a command the options for sharing its records among workers."""
    return with_options(
        command,
        click.option(
            "--num_workers",
            metavar="N",
            help="Share the records among so many processes. What one that dies had in hand, "
            "another does.",
        ),
        click.option(
            "--ray_address",
            metavar="ADDRESS",
            help="Use this Ray cluster; without it Ray starts here. Its machines must reach "
            "--data.",
        ),
        click.option(
            "--give_up_after",
            metavar="SECONDS",
            default=Workers.give_up_after_s,
            show_default=True,
            help="Fail when no worker has got further for so long.",
        ),
    )
