"""Options for tracking a training job in MLflow and TensorBoard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from elasticdl.cli.options import with_options

_Command = TypeVar("_Command", bound=Callable[..., Any])


def tracking_options(command: _Command) -> _Command:
    """Decorator: add the options for tracking in MLflow and TensorBoard to a command."""
    return with_options(
        command,
        click.option(
            "--tracking_uri",
            metavar="URI",
            help="Track the training in MLflow: a server, a database, or a folder. [default with "
            "--experiment: $MLFLOW_TRACKING_URI, or mlflow.db in this folder]",
        ),
        click.option(
            "--experiment",
            metavar="NAME",
            help="MLflow experiment to track in. [default: $MLFLOW_EXPERIMENT_NAME, or elasticdl]",
        ),
        click.option(
            "--run_name", metavar="NAME", help="Name of the MLflow run. [default: that of --output]"
        ),
        click.option(
            "--tensorboard", is_flag=True, help="Write curves for TensorBoard to OUTPUT/logs."
        ),
    )
