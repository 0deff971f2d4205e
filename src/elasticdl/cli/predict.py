"""`elasticdl predict`."""

from __future__ import annotations

from typing import Any, get_args

import click

from elasticdl import api
from elasticdl.cli.cluster_options import CommandOfClusters, cluster_options, taken
from elasticdl.cli.options import reporter_for
from elasticdl.cli.printable import echo
from elasticdl.cli.workers_options import workers_options
from elasticdl.job import PredictionFormat


@click.command(cls=CommandOfClusters, short_help="Write a trained model's outputs.")
@click.option("--trained_model", required=True, metavar="DIR", help="What `elasticdl train` wrote.")
@click.option("--data", required=True, metavar="GLOB", help="Records; labels are not needed.")
@click.option(
    "--output",
    required=True,
    metavar="FILE|DIR",
    help="A RecordIO file if it ends in .recordio, else a folder of part files. With "
    "--ray_address, on a disk that all machines share, or on an object store.",
)
@click.option(
    "--format",
    type=click.Choice(get_args(PredictionFormat)),
    default="recordio",
    show_default=True,
    help="What the part files are.",
)
@click.option("--minibatch_size", default=256, show_default=True)
@workers_options
@click.option("--dry_run", is_flag=True, help="Print the job and do nothing.")
@click.option("--quiet", is_flag=True, help="Print the result only.")
@cluster_options
def predict(*, dry_run: bool, quiet: bool, **options: Any) -> None:
    """Write what a trained model says of each record, in their order, with their keys.

    The trained model holds the code it was trained with; nothing else is needed.

    \b
    Examples:
      elasticdl predict --trained_model=my_model --data="data/test/*.recordio" --output=predicted/
      elasticdl predict --trained_model=my_model --data="new/*.csv" --output=p/ --format=csv
      elasticdl predict --trained_model=my_model --data="new/*.recordio" --output=p/ --num_workers=3
      elasticdl predict --trained_model=s3://bucket/my_model --data="s3://bucket/new/*.recordio" \\
          --output=s3://bucket/p/ --num_workers=3 --cluster=kubernetes
    """
    asked, cluster = taken(options)
    job = api.prediction_job(**options)
    if dry_run:
        echo(job.to_json())
        return
    if cluster is not None:
        from elasticdl.cli.cluster_run import run_on_cluster  # noqa: PLC0415 - imports an extra

        run_on_cluster(job, cluster, asked, quiet=quiet)
        return
    outcome = api.run(job, reporter_for(quiet))
    echo(f"Predicted {outcome.metrics['num_records']:,} records: {outcome.output}")
