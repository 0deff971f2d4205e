"""The options that say which session is meant and how to train it, wherever it is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from elasticdl.cli.options import with_options
from elasticdl.cli.workers_options import training_workers_options

_Command = TypeVar("_Command", bound=Callable[..., Any])

RUN_NAME = click.option("--run_name", required=True, metavar="NAME", help="Folder in runs/.")
PROJECT_ROOT = click.option(
    "--project_root",
    default=".",
    show_default=True,
    metavar="DIR",
    help="Folder of the project, which has runs/.",
)


def config_options(command: _Command) -> _Command:
    """Give a command the options for what the config leaves open or says otherwise."""
    return with_options(
        command,
        click.option(
            "--data_dir", metavar="DIR", help="Where the data is, if not as the config says."
        ),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            help="Replace a value of the config: model_builder.dropout_rate=0.5. Can be repeated.",
        ),
    )


def training_options(command: _Command) -> _Command:
    """Give a command the options for how a session is trained and followed."""
    return with_options(
        command,
        click.option(
            "--epochs", type=click.IntRange(1), help="Train so many epochs, not the config's."
        ),
        training_workers_options,
        click.option(
            "--checkpoint_steps",
            default=0,
            help="Checkpoint each so many steps; 0 for by time, at most 1 % of it.",
        ),
        click.option(
            "--tracking_uri",
            metavar="URI",
            help="MLflow server, database or folder to track the session in. [default: "
            "MLFLOW_TRACKING_URI, or mlflow.db: in runs/, or where submitted sessions lie]",
        ),
        click.option(
            "--track/--no-track",
            "tracked",
            default=True,
            show_default=True,
            help="Let people follow the session in MLflow and TensorBoard.",
        ),
    )
