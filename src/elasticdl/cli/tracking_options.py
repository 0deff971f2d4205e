"""The options that say where people follow a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from elasticdl.cli.options import with_options

_Command = TypeVar("_Command", bound=Callable[..., Any])


def tracking_options(command: _Command) -> _Command:
    """Give a command the options of MLflow and TensorBoard; see `api.tracking_of`."""
    return with_options(
        command,
        click.option(
            "--tracking_uri",
            metavar="URI",
            help="Track the training in MLflow: a server, a database, or a folder. With "
            "--experiment alone it is $MLFLOW_TRACKING_URI, or mlflow.db here.",
        ),
        click.option(
            "--experiment",
            metavar="NAME",
            help="MLflow experiment to track in; without it $MLFLOW_EXPERIMENT_NAME, or elasticdl.",
        ),
        click.option(
            "--run_name", metavar="NAME", help="Call the MLflow run so; without it as --output."
        ),
        click.option(
            "--tensorboard", is_flag=True, help="Write curves for TensorBoard to OUTPUT/logs."
        ),
    )
