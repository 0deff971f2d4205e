"""`elasticdl job list|show|logs|stop|page|dashboard`: for jobs here or on a Kubernetes cluster.

With `--cluster`, a job is identified by its name there; otherwise by its output (`job_outputs.py`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from elasticdl import api
from elasticdl.cli import job_outputs
from elasticdl.cli.job_table import JobRow, print_jobs
from elasticdl.cli.options import with_options
from elasticdl.cli.printable import echo, printable
from elasticdl.errors import UsageError

if TYPE_CHECKING:
    from elasticdl.cluster.kubernetes_client import Object

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _where(command: _Command) -> _Command:
    return with_options(
        command,
        click.option(
            "--cluster",
            type=click.Choice(["kubernetes"]),
            help="Use jobs on the cluster of the kubeconfig, by name, instead of outputs.",
        ),
        click.option("--context", metavar="NAME", help="Context of the kubeconfig."),
        click.option(
            "--namespace", metavar="NAME", help="Namespace. [default: that of the context]"
        ),
    )


def _is_on_cluster(cluster: str | None, context: str | None, namespace: str | None) -> bool:
    """Return whether a job is identified by its name on a cluster.

    Raises:
        UsageError: Cluster options are set without a cluster.
    """
    if cluster is None and (context is not None or namespace is not None):
        raise UsageError("--context and --namespace need --cluster=kubernetes.")
    return cluster is not None


@click.command("list")
@click.argument("folder", required=False)
@_where
def list_jobs(
    folder: str | None, cluster: str | None, context: str | None, namespace: str | None
) -> None:
    """List jobs and their states: those in a FOLDER of outputs, or in a namespace.

    FOLDER contains outputs of training jobs, on this machine or an object store; the default is the
    current folder.

    \b
    Examples:
      elasticdl job list runs
      elasticdl job list --cluster=kubernetes --namespace=team
    """
    if not _is_on_cluster(cluster, context, namespace):
        job_outputs.list_outputs(folder or ".")
        return
    if folder is not None:
        raise UsageError(
            f"{folder}: a folder and --cluster exclude each other. Use only one of them."
        )
    from elasticdl.cluster.follow import progress_of, states  # noqa: PLC0415 - not for `--help`
    from elasticdl.cluster.progress import short  # noqa: PLC0415 - as well

    connected = api.connect_cluster(context, namespace)
    rows = []
    for job, state in states(connected):
        output = (job["metadata"].get("annotations") or {}).get("elasticdl.org/output", "")
        facts = {
            "progress": short(progress_of(connected, job, state)),
            "age": _age(job),
            "output": output,
        }
        shown = {title: printable(value) for title, value in facts.items()}
        words = printable(state.sentence)
        rows.append(JobRow(printable(job["metadata"]["name"]), words, shown))
    if rows:
        print_jobs(rows)
    else:
        echo("No jobs found.")


@click.command("show")
@click.argument("job")
@_where
def show(job: str, cluster: str | None, context: str | None, namespace: str | None) -> None:
    """Show the state and progress of a JOB, and what it is waiting for.

    JOB is its output, or its name on a --cluster. For an output it also shows what happened: lost
    workers and how long the others waited, stalls, parties that were left out, overfitting.

    \b
    Example:
      elasticdl job show my_model
    """
    if not _is_on_cluster(cluster, context, namespace):
        job_outputs.show_output(job)
        return
    from elasticdl.cluster.follow import current, progress_of  # noqa: PLC0415 - not for `--help`
    from elasticdl.cluster.launch import shown  # noqa: PLC0415 - as well
    from elasticdl.cluster.progress import in_words  # noqa: PLC0415 - as well

    connected = api.connect_cluster(context, namespace)
    found, state = current(connected, job)
    echo(shown(state))
    if words := in_words(progress_of(connected, found, state)):
        echo(f"  {words}")


@click.command("logs")
@click.argument("job")
@_where
def logs(job: str, cluster: str | None, context: str | None, namespace: str | None) -> None:
    """Print the events of a JOB until it has ended.

    JOB is its output, or its name on a --cluster. For an output, these are its events in words, its
    notes and warnings; output printed by the model's code is kept only on a cluster.

    \b
    Example:
      elasticdl job logs my_model
    """
    if not _is_on_cluster(cluster, context, namespace):
        job_outputs.print_log(job)
        return
    from elasticdl.cluster.follow import follow  # noqa: PLC0415 - not for `--help`

    follow(api.connect_cluster(context, namespace), job, lambda _: None, echo)


@click.command("stop")
@click.argument("job")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    default=120.0,
    show_default=True,
    help="Without --cluster: time to wait for the last checkpoint.",
)
@_where
def stop(
    job: str,
    timeout_s: float,
    cluster: str | None,
    context: str | None,
    namespace: str | None,
) -> None:
    """Stop a JOB after a last checkpoint; run the same `train` command to resume it.

    JOB is its output, if a process on this machine is running it, or its name on a --cluster, where
    its machines are released.

    \b
    Example:
      elasticdl job stop my_model
    """
    if not _is_on_cluster(cluster, context, namespace):
        job_outputs.stop_output(job, timeout_s)
        return
    from elasticdl.cluster.submit import stop as stop_job  # noqa: PLC0415 - not for `--help`

    connected = api.connect_cluster(context, namespace)
    echo("Waiting for the last checkpoint and the end of its pods ...", err=True)
    stop_job(connected, job)
    echo(f"{job} is stopped. Run its command again to resume it.")


@click.command("page")
@click.argument("place", metavar="JOB")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:0",
    show_default=True,
    help="Where to listen; port 0 chooses a free one. Any address other than 127.0.0.1 is "
    "reachable from other machines.",
)
@_where
def page(
    place: str, listen: str, cluster: str | None, context: str | None, namespace: str | None
) -> None:
    """Show what a JOB is doing and why it slowed down, in a browser.

    JOB is the path passed as --output, or a folder of such outputs, shown side by side; on this
    machine or an object store. The job may be running, here or elsewhere, or have ended: the page
    reads only its event log. With --cluster, JOB is the name of a training job there, whose page is
    reached through a port-forward while it runs. The URL with its token is printed; Ctrl-C stops
    the page.

    \b
    Examples:
      elasticdl job page my_model
      elasticdl job page s3://bucket/runs --listen=127.0.0.1:8080
      elasticdl job page train-4c1a --cluster=kubernetes
    """
    on_cluster = _is_on_cluster(cluster, context, namespace)
    job_outputs.warn_of(listen)
    if not on_cluster:
        job_outputs.serve_page(place, listen)
        return
    from elasticdl.page.forwarded import serve_forwarded  # noqa: PLC0415 - not for `--help`

    connected = api.connect_cluster(context, namespace)
    serve_forwarded(
        connected, place, listen, job_outputs.print_url, lambda line: echo(line, err=True)
    )


@click.command("dashboard")
@click.argument("job")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=0,
    show_default=True,
    help="Port of 127.0.0.1 to listen on; 0 chooses a free one.",
)
@_where
def dashboard(
    job: str, port: int, cluster: str | None, context: str | None, namespace: str | None
) -> None:
    """Open Ray's dashboard of a JOB on a --cluster: actors, logs and memory of its nodes.

    JOB is its name there. The dashboard is reached through a port-forward while the job runs;
    Ctrl-C ends the port-forward. The URL is printed, and the command that prints the token for the
    dashboard. The progress and events of a training job are on its own page: elasticdl job page.

    \b
    Example:
      elasticdl job dashboard train-4c1a --cluster=kubernetes
    """
    if not _is_on_cluster(cluster, context, namespace):
        raise UsageError(
            "Ray's dashboard is only for jobs on a cluster: add --cluster=kubernetes. Otherwise, "
            f"use the job page: elasticdl job page {job}"
        )
    from elasticdl.cluster.dashboard import serve_dashboard  # noqa: PLC0415 - not for `--help`

    connected = api.connect_cluster(context, namespace)
    serve_dashboard(connected, job, port, echo, lambda line: echo(line, err=True))


def _age(job: Object) -> str:
    begun = dt.datetime.fromisoformat(job["metadata"]["creationTimestamp"])
    return str(dt.timedelta(seconds=int((dt.datetime.now(dt.UTC) - begun).total_seconds())))
