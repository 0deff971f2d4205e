"""`elasticdl job list|show|logs|stop|page` for jobs identified by their output folders."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from elasticdl.cli.job_table import JobRow, print_jobs
from elasticdl.cli.printable import echo, printable
from elasticdl.data.wording import counted

if TYPE_CHECKING:
    from elasticdl.page.outputs import WatchedOutput
    from elasticdl.page.status import JobStatus

_POLL_S = 0.5
# Minimum time between two printed steps; otherwise there would be a line per second.
_STEPS_S = 10.0


def list_outputs(folder: str) -> None:
    """Print the jobs in a folder of outputs, with their states, progress and run times.

    Of an error with several lines, only the first one is printed.
    """
    from elasticdl.page.outputs import WatchedOutput, find_outputs  # noqa: PLC0415 - not for `--help`
    from elasticdl.page.words import duration_text  # noqa: PLC0415 - as well

    rows = []
    for name, output in find_outputs(folder).items():
        watched = WatchedOutput(output, name)
        status = _status_of(watched)
        facts = {
            "progress": printable(status.progress),
            "loss": "" if status.loss is None else f"{status.loss:.4g}",
            "took": duration_text(watched.history.run_time_s),
        }
        # An error may have many lines, which `job show` prints.
        first, *others = f"{status.state}: {status.message}".splitlines()
        state = printable(f"{first} ..." if others else first)
        rows.append(JobRow(printable(name), state, facts))
    print_jobs(rows)


def show_output(output: str) -> None:
    """Print a job's state, its progress, and sentences about lost workers, stalls and the like.

    Args:
        output: The output folder of the job.
    """
    from elasticdl.page.view import view  # noqa: PLC0415 - not for `--help`
    from elasticdl.page.words import clock_text, duration_text  # noqa: PLC0415 - as well

    watched = only_output(output)
    status = _status_of(watched)
    sections = view(watched.history, watched.facts(), time.time())
    head = sections["head"]
    echo(f"{status.state}: {status.message}")
    # "finished" is printed already.
    progress = "" if status.progress == status.state else status.progress
    parts = [progress, f"{watched.history.unit} {head['step']:,}"]
    if status.loss is not None:
        parts.append(f"loss {status.loss:.4g}")
    if head["workers_wanted"] is not None and status.state == "running":
        parts.append(f"{head['workers']} of {head['workers_wanted'][1]} workers")
    if head["ends_at"] is not None:
        ends = clock_text(head["ends_at"])
        parts.append(f"{duration_text(head['eta_s'])} left, until {ends}")
    # Before the first event, the progress is the step.
    echo("  " + "; ".join(dict.fromkeys(filter(None, parts))))
    for note in head["notes"]:
        echo(f"  {note}")
    if head["num_damaged"]:
        echo(f"  {counted(head['num_damaged'], 'damaged line')} of its log skipped.")
    for finding in sections["findings"]:
        echo(f"  - {finding['text']}")


def print_log(output: str) -> None:
    """Print the events of a job as sentences until it ends."""
    from elasticdl.artifacts.folder import OutputFolder  # noqa: PLC0415 - not for `--help`
    from elasticdl.page.log_reader import LogReader  # noqa: PLC0415 - as well
    from elasticdl.page.parse import Damage, StepColumns, parse  # noqa: PLC0415
    from elasticdl.page.redaction import shown_text  # noqa: PLC0415
    from elasticdl.page.status import JobState  # noqa: PLC0415
    from elasticdl.page.words import clock_text, in_words  # noqa: PLC0415

    watched = only_output(output)
    reader = LogReader(OutputFolder(output))
    printed_s = 0.0
    while True:
        # Read the status before the log: no event logged before the end is then missed.
        watched.refresh()
        has_ended = _status_of(watched).state not in {JobState.STARTING, JobState.RUNNING}
        for piece in reader.read():
            # `parse` returns the steps of a piece together, apart from its other events.
            lines: list[tuple[float, str]] = []
            for item in parse(piece.data, piece.offset):
                if isinstance(item, Damage):
                    lines.append((printed_s, f"(damaged line at byte {item.offset:,} skipped)"))
                elif isinstance(item, StepColumns):
                    for at in range(len(item)):
                        if item.time[at] - printed_s < _STEPS_S:
                            continue
                        printed_s = float(item.time[at])
                        text = (
                            f"Step {int(item.step[at]):,}, epoch {int(item.epoch[at]) + 1}: loss "
                        )
                        text = f"{clock_text(printed_s)}  {text}{item.loss[at]:.4g}"
                        lines.append((printed_s, text))
                else:
                    text = shown_text(in_words(item, watched.history.unit))
                    lines.append((item.time, f"{clock_text(item.time)}  {text}"))
            for _, text in sorted(lines, key=lambda line: line[0]):
                echo(text)
        if has_ended:
            return
        time.sleep(_POLL_S)


def stop_output(output: str, timeout_s: float) -> None:
    """Stop a job that runs on this machine; it first saves a checkpoint. Print what is saved.

    Args:
        output: The output folder of the job.
        timeout_s: How long to wait until the job has ended, in seconds.
    """
    from elasticdl.artifacts.claim import LOCK_FILE  # noqa: PLC0415 - not for `--help`
    from elasticdl.artifacts.folder import OutputFolder  # noqa: PLC0415 - as well
    from elasticdl.artifacts.stop_holder import stop_holder  # noqa: PLC0415

    watched = only_output(output)
    ended = stop_holder(OutputFolder(output), LOCK_FILE, timeout_s)
    watched = only_output(output)
    status = _status_of(watched)
    if ended is None:
        echo(f"Nothing to stop: no process is using {output}. Its state is {status.state}.")
        return
    kept = max(watched.facts().kept_steps, default=None)
    if kept is None:
        echo(f"Stopped {ended}. Nothing had been saved; run the same command to start again.")
        return
    echo(
        f"Stopped {ended}. Progress is saved up to {watched.history.unit} {kept:,}; run the same "
        "command to resume."
    )


def serve_page(place: str, listen: str) -> None:
    """Serve the page of a job, or of all jobs in a folder, until Ctrl-C.

    Args:
        place: The output of the job, or a folder of outputs.
        listen: `HOST:PORT` at which the page is served.
    """
    from elasticdl.page.web_server import serve  # noqa: PLC0415 - not for `--help`

    serve(place, listen, print_url)


def warn_of(listen: str) -> None:
    """Print a warning if other machines can reach a page that listens on `listen` (`HOST:PORT`)."""
    from elasticdl.page.web_server import warning_of  # noqa: PLC0415 - not for `--help`

    warning = warning_of(listen)
    if warning is not None:
        click.secho(printable(warning), fg="yellow", err=True)


def print_url(url: str) -> None:
    """Print the URL of the page, with its token; programs may wait for this line."""
    echo(f"Job page: {url}")


def only_output(output: str) -> WatchedOutput:
    """Return the output of a job, whose name or folder the user passed.

    Raises:
        OutputError: It does not exist, or is a folder of several outputs.
    """
    from elasticdl.errors import OutputError  # noqa: PLC0415 - not for `--help`
    from elasticdl.page.outputs import WatchedOutput, find_outputs  # noqa: PLC0415 - as well

    found = find_outputs(output)
    if len(found) > 1 or next(iter(found.values())).uri != output:
        some = ", ".join(list(found)[:5])
        raise OutputError(
            f"{output} is not the output of one job; it contains {len(found)} ({some}). Choose one "
            "of them."
        )
    ((name, folder),) = found.items()
    watched = WatchedOutput(folder, name)
    watched.refresh()
    return watched


def _status_of(watched: WatchedOutput) -> JobStatus:
    from elasticdl.page.status import status_of  # noqa: PLC0415 - not for `--help`

    watched.refresh()
    return status_of(watched.history, watched.facts(), time.time())
