"""The options of commands whose records are shared among workers: `evaluate` and `predict`.

`train` has options of these names too, which say what they mean to a training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from elasticdl.job import Workers

_Command = TypeVar("_Command", bound=Callable[..., Any])


def workers_options(command: _Command) -> _Command:
    """Give a command the options for sharing its records among workers."""
    for option in reversed(
        [
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
        ]
    ):
        command = option(command)
    return command
