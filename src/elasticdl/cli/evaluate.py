"""`elasticdl evaluate`: evaluates a trained model on records."""

from __future__ import annotations

from typing import Any

import click

from elasticdl import api, job_options
from elasticdl.cli.options import minibatch_size_option, print_metrics, reporter_for
from elasticdl.cli.printable import echo
from elasticdl.cli.workers_options import workers_options


@click.command(short_help="Evaluate a trained model on records.")
@click.option(
    "--trained_model", required=True, metavar="DIR", help="Output folder of `elasticdl train`."
)
@click.option("--data", required=True, metavar="GLOB", help="Records with labels.")
@click.option(
    "--validation_split",
    metavar="SHARE",
    help="Only the records that training on --data with this --validation_split holds out.",
)
@click.option(
    "--output",
    metavar="FILE",
    help="JSON file for the metrics. [default: evaluation.json in the trained model]",
)
@click.option(
    "--report",
    is_flag=False,
    flag_value="",
    metavar="[DIR]",
    help="Also write the model's prediction and the metrics of each record to DIR: "
    "report.parquet, CSV files and a page. [default: report/ in the trained model]",
)
@minibatch_size_option(
    default=256,
    show_default=True,
    help="Batch size: examples per call of the model.",
)
@workers_options
@click.option("--dry_run", is_flag=True, help="Print the job and exit.")
@click.option("--quiet", is_flag=True, help="Print only the result: no progress, no notes.")
def evaluate(*, dry_run: bool, quiet: bool, **options: Any) -> None:
    """Evaluate a trained model on records, print the metrics and save them.

    \b
    Examples:
      elasticdl evaluate --trained_model=my_model --data="data/test/*.recordio"
      elasticdl evaluate --trained_model=my_model --data="data/test/*.recordio" --report
      elasticdl evaluate --trained_model=my_model --data="data/test/*.recordio" --num_workers=3
      elasticdl evaluate --trained_model=my_model --data=my_data --validation_split=0.2
    """
    job = job_options.evaluation_job(**options)
    if dry_run:
        echo(job.to_json())
        return
    outcome = api.run(job, reporter_for(quiet))
    print_metrics(outcome.metrics)
    if outcome.output:
        echo(f"Saved in {outcome.output}")
    if job.report is not None:
        echo(f"Report in {job.report}/report.html")
