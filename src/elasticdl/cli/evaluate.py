"""`elasticdl evaluate`."""

from __future__ import annotations

from typing import Any

import click

from elasticdl import api
from elasticdl.cli.options import print_metrics, reporter_for
from elasticdl.cli.printable import echo
from elasticdl.cli.workers_options import workers_options


@click.command(short_help="Measure a trained model on records.")
@click.option("--trained_model", required=True, metavar="DIR", help="What `elasticdl train` wrote.")
@click.option("--data", required=True, metavar="GLOB", help="Records with labels.")
@click.option(
    "--output",
    metavar="FILE",
    help="JSON file for the metrics; default evaluation.json in the trained model.",
)
@click.option(
    "--report",
    is_flag=False,
    flag_value="",
    metavar="[DIR]",
    help="Also write what the model says of each record: report.parquet, CSV files and a page, "
    "into DIR; default report/ in the trained model.",
)
@click.option("--minibatch_size", default=256, show_default=True)
@workers_options
@click.option("--dry_run", is_flag=True, help="Print the job and do nothing.")
@click.option("--quiet", is_flag=True, help="Print the result only.")
def evaluate(*, dry_run: bool, quiet: bool, **options: Any) -> None:
    """Measure a trained model on records, print the metrics and save them.

    \b
    Examples:
      elasticdl evaluate --trained_model=my_model --data="data/test/*.recordio"
      elasticdl evaluate --trained_model=my_model --data="data/test/*.recordio" --report
      elasticdl evaluate --trained_model=my_model --data="data/test/*.recordio" --num_workers=3
    """
    job = api.evaluation_job(**options)
    if dry_run:
        echo(job.to_json())
        return
    outcome = api.run(job, reporter_for(quiet))
    print_metrics(outcome.metrics)
    echo(f"Saved in {outcome.output}")
    if job.report is not None:
        echo(f"Report in {job.report}/report.html")
