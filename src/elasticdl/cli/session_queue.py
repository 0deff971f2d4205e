"""`elasticdl session submit`, and commands for submitted sessions: queue, cancel, logs."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich import box
from rich.table import Table

from elasticdl.cli.console import TableConsole
from elasticdl.cli.printable import echo
from elasticdl.cli.session_options import RUN_NAME, config_options, training_options

if TYPE_CHECKING:
    from elasticdl.sessions.queue import Queue
    from elasticdl.sessions.submission import Submission

_INTERRUPTED = 130
_COLOURS = {
    "queued": "default",
    "running": "cyan",
    "interrupted": "yellow",
    "failed": "red",
    "killed": "yellow",
    "exported": "green",
    "evaluated": "green",
}
_HOME = click.option(
    "--home",
    envvar="ELASTICDL_HOME",
    metavar="DIR",
    help="Folder of submitted sessions; also ELASTICDL_HOME. [default: your user data folder]",
)
_SLOTS = click.option(
    "--slots",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of sessions that run at the same time; takes effect when the queue starts.",
)
_ID = click.argument("submission", metavar="ID")


@click.command()
@RUN_NAME
@click.option(
    "--repo",
    default=".",
    show_default=True,
    metavar="URL|DIR",
    help="Repository: a folder in it, or a URL (URL#folder for a project in a subfolder).",
)
@click.option(
    "--commit", default="HEAD", show_default=True, metavar="SHA|BRANCH|TAG", help="Commit to train."
)
@config_options
@training_options
@click.option(
    "--as_ray_job",
    is_flag=True,
    help="Let the cluster of --ray_address run the session itself, as a Ray job; all of its "
    "machines must have --home, and the data, under the same path.",
)
@click.option("--with-patch", is_flag=True, help="Include, and store, uncommitted changes.")
@click.option("--follow", is_flag=True, help="Show its output, and exit with its exit code.")
@click.option(
    "--max_queued",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Reject the submission if this many sessions are already waiting.",
)
@_SLOTS
@_HOME
def submit(
    *,
    run_name: str,
    repo: str,
    commit: str,
    data_dir: str | None,
    settings: tuple[str, ...],
    epochs: int | None,
    num_workers: str | None,
    num_spare_workers: int,
    ray_address: str | None,
    checkpoint_steps: int,
    tracking_uri: str | None,
    tracked: bool,
    as_ray_job: bool,
    with_patch: bool,
    follow: bool,
    max_queued: int,
    slots: int,
    home: str | None,
) -> int:
    """Queue a session of a commit; it runs in its own checkout.

    The commit is resolved at once: later changes of the branch or of your folder have no effect.
    Uncommitted changes are refused, or stored with the submission (--with-patch). Submit the same
    again to resume it.

    \b
    Examples:
      elasticdl session submit --run_name=baseline --data_dir=datasets/mnist
      elasticdl session submit --run_name=baseline --commit=v1.2 --follow
      elasticdl session submit --repo=https://host/digits --commit=main --run_name=baseline \\
          --data_dir=/data/mnist
    """
    from elasticdl.sessions import runner, submit  # noqa: PLC0415 - not for `--help`
    from elasticdl.sessions.queue import Queue  # noqa: PLC0415

    request = submit.SubmitRequest(
        run_name=run_name,
        repo=repo,
        commit=commit,
        data_dir=data_dir,
        settings=settings,
        epochs=epochs,
        num_workers=num_workers,
        num_spare_workers=num_spare_workers,
        ray_address=ray_address,
        checkpoint_steps=checkpoint_steps,
        tracking_uri=tracking_uri,
        tracked=tracked,
        as_ray_job=as_ray_job,
        with_patch=with_patch,
    )
    origin = submit.find(request)
    echo(f"Commit {origin.commit} of {origin.url.shown}")
    queue = Queue(home)
    submission = submit.submit(request, origin, queue, max_queued=max_queued)
    # Output of the submission's earlier run is not shown again.
    printed = queue.log_size(submission) if submission.is_waiting else 0
    runner.ensure(queue, slots)
    _describe(queue, submission)
    return _follow(queue, submission, printed, slots) if follow else 0


@click.command("queue")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@_SLOTS
@_HOME
def queue_(*, as_json: bool, slots: int, home: str | None) -> None:
    """List submitted sessions, and make sure that the queue is running.

    The queue runs by itself until the machine is restarted. Run this command afterwards: it starts
    the queue again.
    """
    from elasticdl.sessions import runner  # noqa: PLC0415 - not for `--help`
    from elasticdl.sessions.queue import Queue  # noqa: PLC0415

    queue = Queue(home)
    found = [queue.settled(one) for one in queue.all()]
    runner.ensure(queue, slots)
    if as_json:
        rows = [{**asdict(one), "folder": str(queue.folder(one.id))} for one in found]
        echo(json.dumps(rows))
        return
    if not found:
        echo(f"Nothing was submitted to {queue.home}.")
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in ("ID", "REPO", "COMMIT", "RUN", "STATE", "SINCE"):
        table.add_column(title, no_wrap=title in {"ID", "STATE"}, overflow="fold")
    for one in found:
        table.add_row(
            one.id,
            one.repo.rstrip("/").rpartition("/")[2]
            + (f"#{one.subfolder}" if one.subfolder else ""),
            one.commit[:7] + ("+patch" if one.patch else ""),
            one.run_name,
            f"[{_COLOURS.get(one.state, 'default')}]{one.state}[/]",
            time.strftime("%d %b %H:%M", time.localtime(one.since)),
        )
    TableConsole().print(table)
    echo(f"Logs: {queue.home}/ID/session.log")


@click.command()
@_ID
@click.option("--now", is_flag=True, help="Kill it at once, without a last checkpoint.")
@_HOME
def cancel(*, submission: str, now: bool, home: str | None) -> None:
    """Stop a submitted session; submit it again to resume from its last checkpoint."""
    from elasticdl.sessions.queue import Queue  # noqa: PLC0415 - not for `--help`

    found = Queue(home).cancel(submission, at_once=now)
    if found.has_ended:
        echo(f"{found.id} will not be started.")
    else:
        how = "was killed" if now else "was requested to stop, after a last checkpoint"
        echo(f"{found.id} {how}. Submit it again to resume.")


@click.command()
@_ID
@click.option("--follow", is_flag=True, help="Follow until it ends, and exit with its exit code.")
@_HOME
def logs(*, submission: str, follow: bool, home: str | None) -> int:
    """Print the output of a submitted session."""
    from elasticdl.sessions.queue import Queue  # noqa: PLC0415 - not for `--help`

    queue = Queue(home)
    found = queue.find(submission)
    if follow:
        return _follow(queue, found, 0, 1)
    for piece in queue.read_log(found, 0, follow=False):
        click.echo(piece, nl=False)
    return 0


def _describe(queue: Queue, submission: Submission) -> None:
    folder = queue.folder(submission.id)
    if submission.has_ended:
        echo(f"{submission.id} has already run: {submission.state}")
    else:
        submission = queue.read(submission.id)
        before = sum(
            not one.has_ended for one in queue.all() if one.submitted < submission.submitted
        )
        behind = f", behind {before}" if submission.is_waiting and before else ""
        echo(f"{submission.id} is {submission.state}{behind}")
    if submission.patch:
        echo(f"  changes  {folder / 'patch.diff'}")
    echo(f"  results  {submission.session_folder(folder)}")
    echo(f"  log      {queue.log(submission)}")


def _follow(queue: Queue, submission: Submission, offset: int, slots: int) -> int:
    """Print the output of a submission until it has ended; return its exit code.

    After Ctrl-C, the session continues.

    Args:
        queue: The queue of submissions.
        submission: The submission.
        offset: Position in its log to start from, in bytes.
        slots: Number of sessions to run at the same time, if the queue has to be restarted.
    """
    from elasticdl.sessions import runner  # noqa: PLC0415 - not for `--help`

    try:
        for piece in queue.read_log(submission, offset, follow=True):
            if piece:
                click.echo(piece, nl=False)
            else:
                # A killed runner would never start it: start a new one.
                runner.ensure(queue, slots)
    except KeyboardInterrupt:
        echo(
            "\n"
            "No longer followed; the session continues. To follow it again:\n"
            f"  elasticdl session logs {submission.id} --follow\n"
            "To end it:\n"
            f"  elasticdl session cancel {submission.id}",
            err=True,
        )
        return _INTERRUPTED
    ended = queue.read(submission.id)
    click.secho(f"{ended.id}: {ended.state}", fg=_COLOURS.get(ended.state), err=True)
    if ended.error:
        echo(f"  {ended.error}", err=True)
    return ended.exit_code or 0
