"""`elasticdl job list|show|logs|stop`: jobs on a Kubernetes cluster."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich import box
from rich.console import Console
from rich.table import Table

from elasticdl import api
from elasticdl.cli.options import with_options
from elasticdl.cli.printable import echo, printable

if TYPE_CHECKING:
    from elasticdl.cluster.kubernetes import Object

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _where(command: _Command) -> _Command:
    return with_options(
        command,
        click.option(
            "--cluster",
            type=click.Choice(["kubernetes"]),
            required=True,
            help="Where the jobs are: on the cluster of the kubeconfig.",
        ),
        click.option("--context", metavar="NAME", help="Context of the kubeconfig."),
        click.option("--namespace", metavar="NAME", help="Namespace; that of the context."),
    )


@click.command("list")
@_where
def list_jobs(cluster: str, context: str | None, namespace: str | None) -> None:
    """List the jobs of a namespace and what they are doing, the newest first.

    \b
    Example:
      elasticdl job list --cluster=kubernetes --namespace=team
    """
    from elasticdl.cluster.follow import progress_of, states  # noqa: PLC0415 - not for `--help`
    from elasticdl.cluster.progress import short  # noqa: PLC0415 - as well

    del cluster
    connected = api.connect_cluster(context, namespace)
    rows = []
    for job, state in states(connected):
        output = (job["metadata"].get("annotations") or {}).get("elasticdl.org/output", "")
        progress = short(progress_of(connected, job, state))
        shown = f"{state.phase}: {state.message}"
        name = job["metadata"]["name"]
        rows.append([printable(each) for each in (name, shown, progress, _age(job), output)])
    if rows:
        # What others wrote into annotations is no markup.
        Console(markup=False).print(_table(rows))
    else:
        echo("There is no job.")


@click.command("show")
@click.argument("name")
@_where
def show(name: str, cluster: str, context: str | None, namespace: str | None) -> None:
    """Say what a job is doing, how far it is, and what it is waiting for."""
    from elasticdl.cluster.follow import current, progress_of  # noqa: PLC0415 - not for `--help`
    from elasticdl.cluster.launch import shown  # noqa: PLC0415 - as well
    from elasticdl.cluster.progress import in_words  # noqa: PLC0415 - as well

    del cluster
    connected = api.connect_cluster(context, namespace)
    job, state = current(connected, name)
    echo(shown(state))
    if words := in_words(progress_of(connected, job, state)):
        echo(f"  {words}")


@click.command("logs")
@click.argument("name")
@_where
def logs(name: str, cluster: str, context: str | None, namespace: str | None) -> None:
    """Print what a job prints, until it has ended."""
    from elasticdl.cluster.follow import follow  # noqa: PLC0415 - not for `--help`

    del cluster
    follow(api.connect_cluster(context, namespace), name, lambda _: None, echo)


@click.command("stop")
@click.argument("name")
@_where
def stop(name: str, cluster: str, context: str | None, namespace: str | None) -> None:
    """End a job and free its machines; the same `train` command resumes it."""
    from elasticdl.cluster.submit import stop as stop_job  # noqa: PLC0415 - not for `--help`

    del cluster
    stop_job(api.connect_cluster(context, namespace), name)
    echo(f"{name} is stopped. Give its command again to resume it.")


def _table(rows: Sequence[Sequence[str]]) -> Table:
    """Return the jobs as a table that keeps whole what is typed or compared."""
    table = Table(box=box.SIMPLE_HEAD)
    for number, title in enumerate(("job", "state", "progress", "age", "output")):
        if title in {"state", "output"}:
            table.add_column(title, overflow="fold")
        else:
            width = max(len(row[number]) for row in rows)
            table.add_column(title, no_wrap=True, min_width=max(width, len(title)))
    for row in rows:
        table.add_row(*row)
    return table


def _age(job: Object) -> str:
    begun = dt.datetime.fromisoformat(job["metadata"]["creationTimestamp"])
    return str(dt.timedelta(seconds=int((dt.datetime.now(dt.UTC) - begun).total_seconds())))
