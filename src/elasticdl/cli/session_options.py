"""Options that several `elasticdl session` commands share: they select and change a session."""

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
    """Decorator: add `--data_dir` and `--set`, which replace values of a session's config."""
    return with_options(
        command,
        click.option(
            "--data_dir",
            metavar="DIR",
            help="Folder of the data, instead of the one in the config.",
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
    """Decorator: add `--epochs` and the options for workers, checkpoints and tracking."""
    return with_options(
        command,
        click.option(
            "--epochs", type=click.IntRange(1), help="Number of epochs, instead of the config's."
        ),
        training_workers_options,
        click.option(
            "--checkpoint_steps",
            default=0,
            help="Checkpoint every N steps; each one saves the weights and the optimizer's state. "
            "0: at most every 30 s, taking at most 1% of the training time.",
        ),
        click.option(
            "--tracking_uri",
            metavar="URI",
            help="MLflow server, database or folder to track the session in. [default: "
            "MLFLOW_TRACKING_URI, or mlflow.db, in runs/ or in the home of submitted sessions]",
        ),
        click.option(
            "--track/--no-track",
            "tracked",
            default=True,
            show_default=True,
            help="Track the session in MLflow and TensorBoard.",
        ),
    )
