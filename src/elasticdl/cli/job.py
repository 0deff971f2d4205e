"""`elasticdl job`: inspects the output of a training job.

Prints the result of `engines/audit.py` and what `page/` reads from the log. Loads no framework, so
it is fast.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import click
from rich import box
from rich.table import Table

from elasticdl import api
from elasticdl.cli import job_cluster
from elasticdl.cli.console import TableConsole
from elasticdl.cli.job_outputs import only_output
from elasticdl.cli.printable import echo
from elasticdl.data.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasticdl.engines.audit import AuditReport, EpochReport, WrongBatch

_MAX_LINES = 20
_MAX_SHARDS = 5


@click.group()
def job() -> None:
    """Inspect a training job, while it runs or afterwards."""


for _command in (
    job_cluster.list_jobs,
    job_cluster.show,
    job_cluster.logs,
    job_cluster.stop,
    job_cluster.page,
    job_cluster.dashboard,
):
    job.add_command(_command)


@job.command("audit")
@click.argument("output")
@click.option("--json", "as_json", is_flag=True, help="Print all findings as JSON.")
def audit(output: str, as_json: bool) -> int:
    """Check that each record was trained on exactly once in every epoch.

    OUTPUT is the folder passed as `elasticdl train --output`; nothing in it is changed, and the
    data are not needed. Its events.jsonl records which batches were trained on and by which worker,
    also across kills, restarts and lost workers. This command compares that with the plan, which
    determines the records of each batch, and reports every record of a finished epoch that was not
    trained on exactly once. For an unfinished epoch it reports the progress. Records left out by
    --skip_bad_records are named, with the first epoch without them.

    If your own code makes the batches (a DataLoader, a PyDataset, the components of a session),
    batches are checked instead of records, because only your code knows the records in a batch.
    If your code also decides how many batches there are (`dataset_fn`, `feed`), each batch must be
    trained on once, and no number may be missing between two batches.

    \b
    Exit code: 0 if no problem was found, 1 otherwise.

    \b
    Examples:
      elasticdl job audit my_model
      elasticdl job audit my_model --json | jq '.wrong[].records'
    """
    # Only for its errors: the folder may contain several outputs.
    only_output(output)
    report = api.audit(output)
    if as_json:
        echo(json.dumps(_as_json(report)))
    else:
        _show(report)
    return 0 if report.clean else 1


def _show(report: AuditReport) -> None:
    done = report.counted if report.by_record else "batches"
    table = Table("epoch", done, "workers", "lost workers", "verdict", box=box.SIMPLE_HEAD)
    for epoch in report.epochs:
        table.add_row(
            str(epoch.counts.epoch + 1),
            _progress(report, epoch),
            str(len(epoch.counts.ranks)),
            str(epoch.lost_workers),
            _verdict(report, epoch),
        )
    console = TableConsole(highlight=False, markup=False)
    console.print(table)
    if not report.epochs:
        console.print(f"No {done} have been trained on yet.")
    for left_out in report.left_out:
        echo(
            f"Left out from epoch {left_out.epoch + 1} on, for batch {left_out.batch} of shard "
            f"{left_out.shard} killed workers: {left_out.name}."
        )
    lines = _complaints(report)
    for line in itertools.islice(lines, _MAX_LINES):
        echo(line)
    if next(lines, None) is not None:
        echo("... and more: use --json to list everything.")
    if not report.by_record:
        _show_what_cannot_be_said(report)


def _progress(report: AuditReport, epoch: EpochReport) -> str:
    counts = epoch.counts
    if epoch.num_records is None:
        return f"{counts.num_batches:,}"
    return f"{epoch.num_records:,} of {report.plan.num_records:,}"


def _verdict(report: AuditReport, epoch: EpochReport) -> str:
    if not epoch.clean:
        return "NOT CLEAN"
    once = "each once" if report.by_record else "each batch once"
    if epoch.num_left_out:
        once += f", {epoch.num_left_out:,} left out"
    return once if epoch.counts.finished else f"so far {once}; not finished"


def _complaints(report: AuditReport) -> Iterator[str]:
    for row in report.impossible_rows:
        yield f"The log has batches that the data do not have: {_row_in_words(row)}."
    if report.damaged_events:
        yield f"{counted(report.damaged_events, 'event')} of steps cannot be read."
    for epoch in report.epochs:
        if epoch.unlogged_steps:
            steps = counted(epoch.unlogged_steps, "step")
            yield f"Epoch {epoch.counts.epoch + 1}: the log does not have the batches of {steps}."
        if epoch.unexplained > 0:
            some = counted(epoch.unexplained, "record")
            yield f"Epoch {epoch.counts.epoch + 1}: {some} left out, but no event names them."
        if epoch.unexplained < 0:
            some = counted(-epoch.unexplained, "record")
            yield (
                f"Epoch {epoch.counts.epoch + 1}: {some} trained on that should have been left out."
            )
    for wrong in report.wrong_batches():
        times = "not trained on" if not wrong.count else f"trained on {wrong.count} times"
        by = f" ({'; '.join(map(_row_in_words, wrong.rows))})" if wrong.rows else ""
        if report.by_record:
            for place in wrong.records:
                name = (
                    f"record {place.record} ({place.file}, number {place.number})"
                    if report.counted == "records"
                    else f"batch {place.record} of the epoch"
                )
                yield f"Epoch {wrong.epoch + 1}: {name} was {times}{by}."
        else:
            first, last = wrong.records[0], wrong.records[-1]
            yield (
                f"Epoch {wrong.epoch + 1}: batch {wrong.batch} of shard {wrong.shard} (made from "
                f"records {first.record} to {last.record}: {first.file}, number {first.number}, to "
                f"{last.file}, number {last.number}) was {times}{by}."
            )


def _show_what_cannot_be_said(report: AuditReport) -> None:
    echo(
        "The batches were made by the model's own pipeline. Only the pipeline knows how many "
        "batches it makes of a shard, and of which records: where several workers trained in one "
        "step, missing last batches of a shard cannot be detected."
    )
    for epoch in report.epochs:
        silent = epoch.counts.silent_shards
        if silent:
            some = ", ".join(map(str, silent[:_MAX_SHARDS]))
            some += ", ..." if len(silent) > _MAX_SHARDS else ""
            echo(
                f"Epoch {epoch.counts.epoch + 1}: no batch of {counted(len(silent), 'shard')} was "
                f"trained on ({some}); the pipeline may have had none."
            )


def _row_in_words(row: tuple[int, ...]) -> str:
    epoch, rank, shard, first, stop = row
    batches = f"batch {first}" if stop == first + 1 else f"batches {first} to {stop - 1}"
    return f"epoch {epoch + 1}, worker {rank}, shard {shard}, {batches}"


def _as_json(report: AuditReport) -> dict[str, Any]:
    has_records = report.counted == "records"
    return {
        "output": report.output,
        "clean": report.clean,
        "by_record": report.by_record,
        "counted": report.counted,
        "num_records": report.plan.num_records if has_records else None,
        "epochs": [
            {
                "epoch": epoch.counts.epoch,
                "finished": epoch.counts.finished,
                "clean": epoch.clean,
                "trained_records": epoch.num_records if has_records else None,
                "trained_batches": epoch.counts.num_batches,
                "workers": list(epoch.counts.ranks),
                "lost_workers": epoch.lost_workers,
                "unlogged_steps": epoch.unlogged_steps,
                "left_out_records": epoch.num_left_out,
                "unexplained_records": epoch.unexplained,
                "silent_shards": list(epoch.counts.silent_shards),
            }
            for epoch in report.epochs
        ],
        "left_out": [
            {
                "epoch": each.epoch,
                "shard": each.shard,
                "batch": each.batch,
                "records": [place._asdict() for place in each.records],
            }
            for each in report.left_out
        ],
        "impossible_rows": report.impossible_rows,
        "damaged_events": report.damaged_events,
        "wrong": [_wrong_as_json(wrong) for wrong in report.wrong_batches()],
    }


def _wrong_as_json(wrong: WrongBatch) -> dict[str, Any]:
    return {
        "epoch": wrong.epoch,
        "shard": wrong.shard,
        "batch": wrong.batch,
        "count": wrong.count,
        "rows": wrong.rows,
        "records": [place._asdict() for place in wrong.records],
    }
