"""`elasticdl session`: training sessions of a project, described by `runs/NAME/config.yaml`."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich import box
from rich.table import Table

from elasticdl import job_options
from elasticdl.cli import session_queue
from elasticdl.cli.console import TableConsole
from elasticdl.cli.options import as_json_text, print_metrics, reporter_for
from elasticdl.cli.printable import echo
from elasticdl.cli.session_options import (
    PROJECT_ROOT,
    RUN_NAME,
    config_options,
    training_options,
)
from elasticdl.errors import DefinitionError
from elasticdl.sessions import project
from elasticdl.sessions.checks.finding import Severity

if TYPE_CHECKING:
    from elasticdl.sessions.checks.finding import CheckGroup, CheckReport
    from elasticdl.sessions.state import SessionStatus

_STATES = {
    "new": "never ran",
    "interrupted": "interrupted: its process has ended; run the same command to resume",
}
_RESUME = {
    "exact": "exact: within an epoch, immediately",
    "replayed": "replayed: within an epoch, after reading its first batches again",
}
_COLOURS = {
    "running": "cyan",
    "interrupted": "yellow",
    "failed": "red",
    "killed": "yellow",
    "exported": "green",
    "evaluated": "green",
}
_MARKS = {
    Severity.ERROR: ("✗", "red"),
    Severity.WARNING: ("!", "yellow"),
    Severity.INFO: ("✓", "green"),
}


@click.group()
def session() -> None:
    """Train a model described by a config file of your project.

    A project is a folder (a git repository, usually) with five components and a config for each
    session:

    \b
      src/dataset.py, models.py, ...   classes derived from those of `abstractions`
      runs/NAME/config.yaml            names the classes, and holds their parameters

    A session trains, exports its best model and evaluates each example of the validation and test
    data. Its output is written beside its config. Run it again to resume after any interruption.

    \b
    Examples:
      elasticdl session check --run_name=baseline --data_dir=datasets/mnist
      elasticdl session run --run_name=baseline --data_dir=datasets/mnist
      elasticdl session list

    To run sessions of a commit, each in its own checkout, one after another: submit, queue, cancel
    and logs.
    """


for _command in (
    session_queue.submit,
    session_queue.queue_,
    session_queue.cancel,
    session_queue.logs,
):
    session.add_command(_command)


@session.command("run")
@RUN_NAME
@PROJECT_ROOT
@config_options
@training_options
@click.option("--quiet", is_flag=True, help="Print only the result: no progress, no notes.")
def run(
    *,
    run_name: str,
    project_root: str,
    data_dir: str | None,
    settings: tuple[str, ...],
    epochs: int | None,
    num_workers: str | None,
    num_spare_workers: int,
    ray_address: str | None,
    checkpoint_steps: int,
    tracking_uri: str | None,
    tracked: bool,
    quiet: bool,
) -> None:
    """Train a session, export its best model and evaluate it; run the same command to resume.

    It can be run in any state: after `kill -9`, training resumes from the last checkpoint, with the
    same weights as those of an uninterrupted run; a finished session is not changed; with more
    --epochs, training continues. With --num_workers, the input must be a tf.data.Dataset or a
    PyDataset.

    \b
    Examples:
      elasticdl session run --run_name=baseline --data_dir=datasets/mnist
      elasticdl session run --run_name=baseline --data_dir=datasets/mnist --epochs=20
      elasticdl session run --run_name=baseline --set model_builder.dropout_rate=0.5
    """
    from elasticdl.sessions.run import run as run_session  # noqa: PLC0415 - not for `--help`

    found = project.open_session(
        run_name, project_root=project_root, data_dir=data_dir, settings=settings
    )
    workers = job_options.workers(num_workers, num_spare_workers, ray_address)
    status = run_session(
        found,
        num_epochs=epochs,
        workers=workers,
        checkpoint_steps=checkpoint_steps,
        tracked=tracked,
        tracking_uri=tracking_uri,
        reporter=reporter_for(quiet),
    )
    echo(f"Session {found.name}: {status.state}, step {status.step:,}: {found.folder}")
    print_metrics(status.metrics or {})


@session.command("check")
@RUN_NAME
@PROJECT_ROOT
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print all findings as JSON.")
@click.pass_context
def check(
    ctx: click.Context,
    *,
    run_name: str,
    project_root: str,
    data_dir: str | None,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Find the problems of a session within seconds, before training it.

    Checks the config, the code, a few batches of each split, one step of the model, a checkpoint
    and the evaluation functions. Nothing is written into the project. Exit code: 0 if there is no
    error, 3 if there is one.

    \b
    Examples:
      elasticdl session check --run_name=baseline --data_dir=datasets/mnist
      elasticdl session check --run_name=baseline --json
    """
    from elasticdl.sessions.check import check as look  # noqa: PLC0415 - not for `--help`

    report = look(
        run_name,
        project_root=project_root,
        data_dir=data_dir,
        settings=settings,
        on_group=None if as_json else _print_group,
    )
    if as_json:
        echo(json.dumps(report.to_dict()))
    else:
        _print_findings(report)
    if not report.ok:
        ctx.exit(DefinitionError.exit_code)


@session.command("status")
@RUN_NAME
@PROJECT_ROOT
@click.option("--json", "as_json", is_flag=True, help="Print everything known, as JSON.")
def status(*, run_name: str, project_root: str, as_json: bool) -> None:
    """Show the progress of a session."""
    from elasticdl.sessions.run import status_of  # noqa: PLC0415 - not for `--help`

    folder = project.folder_of(project_root, run_name)
    found = status_of(folder)
    if as_json:
        echo(as_json_text(asdict(found)))
        return
    echo(f"Session {run_name}: ", nl=False)
    click.secho(_STATES.get(found.state, found.state), fg=_COLOURS.get(found.state))
    for name, value in _facts(found, folder):
        echo(f"  {name:<9} {value}")
    print_metrics(found.metrics or {})


@session.command("list")
@PROJECT_ROOT
@click.option("--json", "as_json", is_flag=True, help="Print everything known, as JSON.")
def list_(*, project_root: str, as_json: bool) -> None:
    """List a project's sessions and their progress."""
    from elasticdl.sessions.run import status_of  # noqa: PLC0415 - not for `--help`

    names = project.session_names(project_root)
    found = {name: status_of(project.folder_of(project_root, name)) for name in names}
    if as_json:
        echo(as_json_text({name: asdict(status) for name, status in found.items()}))
        return
    if not found:
        echo("There are no sessions: create runs/NAME/config.yaml.")
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in ("NAME", "STATE", "EPOCH", "STEP", "SINCE", "BEST"):
        table.add_column(title, justify="right" if title in {"EPOCH", "STEP"} else "left")
    for name, status in found.items():
        ran = status.attempt > 0
        table.add_row(
            name,
            f"[{_COLOURS.get(status.state, 'default')}]{status.state}[/]",
            f"{status.epoch}/{status.num_epochs}" if ran else "",
            f"{status.step:,}" if ran else "",
            _ago(status.since) if status.since else "",
            _best(status),
        )
    TableConsole().print(table)


def _print_group(group: CheckGroup) -> None:
    """Print the result of one group of checks as a line; called when the group has finished."""
    mark, colour = next(
        (_MARKS[severity] for severity in Severity if group.of(severity)), ("✓", "green")
    )
    if group.skipped:
        mark, colour = "-", "bright_black"
    click.secho(f"  {mark} ", fg=colour, nl=False)
    echo(f"{group.title:<21} {group.seconds:5.1f} s  {group.looked_at}".rstrip())


def _print_findings(report: CheckReport) -> None:
    for severity in Severity:
        for finding in report.of(severity):
            click.secho(f"{severity}: ", fg=_MARKS[severity][1], bold=True, nl=False)
            echo(str(finding))
    errors, warnings = (len(report.of(s)) for s in (Severity.ERROR, Severity.WARNING))
    result = "can be trained" if report.ok else "cannot be trained"
    echo(
        f"Session {report.session} {result}: errors {errors}, warnings {warnings}; "
        f"{report.seconds:.1f} s"
    )


def _facts(status: SessionStatus, folder: Path) -> list[tuple[str, str]]:
    facts = [("folder", str(folder))]
    if status.attempt:
        facts += [
            ("epoch", f"{status.epoch} of {status.num_epochs}, step {status.step:,}"),
            ("since", f"{_ago(status.since)}, attempt {status.attempt}"),
            ("resume", _RESUME.get(status.resume, "from the newest checkpoint")),
            ("by", f"process {status.pid} on {status.host}"),
            ("commit", status.commit or "the project is not in a repository"),
        ]
    if status.error:
        facts.append(("error", status.error.replace("\n", "\n            ")))
    return facts


def _best(status: SessionStatus) -> str:
    value = (status.metrics or {}).get(status.metric)
    return f"{status.metric} {value:.4g}" if isinstance(value, float) else ""


def _ago(since: float) -> str:
    seconds = max(0.0, time.time() - since)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
