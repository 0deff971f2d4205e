"""`elasticdl predict`: writes a trained model's predictions for records."""

from __future__ import annotations

from typing import Any, get_args

import click

from elasticdl import api, job_options
from elasticdl.cli.cluster_options import CommandOfClusters, cluster_options, take_cluster_options
from elasticdl.cli.options import minibatch_size_option, reporter_for
from elasticdl.cli.printable import echo
from elasticdl.cli.workers_options import workers_options
from elasticdl.job import PredictionFormat


@click.command(cls=CommandOfClusters, short_help="Write a trained model's predictions.")
@click.option(
    "--trained_model", required=True, metavar="DIR", help="Output folder of `elasticdl train`."
)
@click.option(
    "--data", required=True, metavar="GLOB", help="Records or images; labels are not needed."
)
@click.option(
    "--output",
    required=True,
    metavar="FILE|DIR",
    help="One file if it ends in .recordio, .parquet or .csv, else a folder of part files. With "
    "--ray_address, on a disk that all machines share, or on an object store.",
)
@click.option(
    "--format",
    type=click.Choice(get_args(PredictionFormat)),
    help="Format of the part files in a folder; the default is recordio.",
)
@click.option(
    "--columns",
    default="",
    metavar="NAMES",
    help="Columns of the input to copy into the predictions, separated by commas.",
)
@minibatch_size_option(
    default=256,
    show_default=True,
    help="Batch size: examples per call of the model.",
)
@workers_options
@click.option("--dry_run", is_flag=True, help="Print the job and exit.")
@click.option("--quiet", is_flag=True, help="Print only the result: no progress, no notes.")
@cluster_options
def predict(*, dry_run: bool, quiet: bool, **options: Any) -> None:
    """Write a trained model's predictions, one row for each record, in the order of the records.

    Each row has a key, which names the file of the record and the record's number in that file.

    The trained model contains the code that it was trained with; nothing else is needed.

    \b
    Examples:
      elasticdl predict --trained_model=my_model --data="data/test/*.recordio" --output=predicted/
      elasticdl predict --trained_model=my_model --data="new/*.csv" --output=predicted.csv
      elasticdl predict --trained_model=my_model --data=new.csv --output=p.csv --columns=id,name
      elasticdl predict --trained_model=my_model --data="new/*.recordio" --output=p/ --num_workers=3
      elasticdl predict --trained_model=s3://bucket/my_model --data="s3://bucket/new/*.recordio" \\
          --output=s3://bucket/p/ --num_workers=3 --cluster=kubernetes
    """
    asked, cluster = take_cluster_options(options)
    job = job_options.prediction_job(**options)
    if dry_run:
        echo(job.to_json())
        return
    if cluster is not None:
        from elasticdl.cli.cluster_run import run_on_cluster  # noqa: PLC0415 - imports an extra

        run_on_cluster(job, cluster, asked, quiet=quiet)
        return
    outcome = api.run(job, reporter_for(quiet))
    endings = tuple(f".{each}" for each in get_args(PredictionFormat))
    is_file = outcome.output.lower().endswith(endings)
    what = "" if is_file else f" (a folder of .{job.prediction_format} files)"
    echo(f"Predicted {outcome.metrics['num_records']:,} records: {outcome.output}{what}")
