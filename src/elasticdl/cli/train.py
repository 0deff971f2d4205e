"""`elasticdl train`: trains a model here, on workers or on a cluster, or resumes training."""

from __future__ import annotations

import shlex
from typing import Any, get_args

import click

from elasticdl import api, job_options
from elasticdl.cli.cluster_options import CommandOfClusters, cluster_options, take_cluster_options
from elasticdl.cli.options import minibatch_size_option, print_metrics, reporter_for
from elasticdl.cli.page_option import is_page_wanted, page_in_pod, page_of, page_option
from elasticdl.cli.printable import echo
from elasticdl.cli.tracking_options import tracking_options
from elasticdl.cli.workers_options import training_workers_options
from elasticdl.data.wording import counted
from elasticdl.dialects import DIALECTS
from elasticdl.job import BestMode, Priority, TrainingOptions, Workers

_DEFAULTS = TrainingOptions()


@click.command(cls=CommandOfClusters, short_help="Train a model, or resume training.")
@click.option(
    "--model_zoo",
    metavar="DIR|URL",
    help="Folder with your model files, or a git repository (URL@commit). "
    "Without it, the models of `elasticdl zoo list`.",
)
@click.option(
    "--model_def",
    metavar="NAME",
    help="Dotted name of the model: file, then class or function (fintech.MyKerasModel).",
)
@click.option(
    "--spec",
    metavar="FILE",
    help="YAML file of a saved model (Keras, TensorFlow, PyTorch), instead of --model_def.",
)
@click.option(
    "--params",
    default="",
    metavar="TEXT",
    help='Values for the model, as literals: "hidden_units=[10, 100], learning_rate=0.01".',
)
@click.option(
    "--data",
    required=True,
    metavar="GLOB",
    help="Training data: a path, URI or glob of record files, or a folder of images.",
)
@click.option(
    "--validation_data",
    metavar="GLOB",
    help="Validation data: records to evaluate on while training.",
)
@click.option(
    "--validation_split",
    metavar="SHARE",
    help="Instead of --validation_data: hold out this share of --data, such as 0.2, to evaluate "
    "on. The same records each time, whatever the seed.",
)
@click.option(
    "--output",
    required=True,
    metavar="DIR",
    help="Folder for the trained model and checkpoints; the same command resumes from it.",
)
@click.option(
    "--num_epochs",
    default=_DEFAULTS.num_epochs,
    show_default=True,
    help="Number of epochs: passes over the training data.",
)
@minibatch_size_option(
    default=_DEFAULTS.minibatch_size,
    show_default=True,
    help="Batch size: examples in one step of one worker.",
)
@click.option(
    "--global_batch_size",
    default=_DEFAULTS.global_batch_size,
    show_default=True,
    help="Examples in one update, accumulated over steps and workers; a multiple of "
    "--minibatch_size. 0: each step is an update, by all workers that take part.",
)
@click.option(
    "--seed",
    default=_DEFAULTS.seed,
    show_default=True,
    help="Random seed of the initial weights, the order of records and dropout.",
)
@click.option(
    "--shuffle/--no-shuffle",
    default=_DEFAULTS.shuffle,
    show_default=True,
    help="Shuffle the records in each epoch.",
)
@click.option("--max_steps", default=0, help="Stop after N steps; 0 means no limit.")
@click.option(
    "--evaluation_steps", default=0, help="Evaluate every N steps; 0 means once per epoch."
)
@click.option(
    "--checkpoint_steps",
    default=0,
    help="Checkpoint every N steps; each one saves the weights and the optimizer's state. "
    "0: at most every 30 s, taking at most 1% of the training time.",
)
@click.option(
    "--keep_checkpoint_max",
    default=_DEFAULTS.keep_checkpoint_max,
    show_default=True,
    help="Number of checkpoints to keep, at least 2; the best one is kept in addition.",
)
@click.option(
    "--best_metric",
    metavar="NAME",
    default=_DEFAULTS.best_metric,
    show_default=True,
    help="Metric that selects the best checkpoint: a validation metric (val_...) or a training "
    "metric.",
)
@click.option(
    "--best_mode",
    type=click.Choice(get_args(BestMode)),
    default=_DEFAULTS.best_mode,
    show_default=True,
    help="Whether the lowest or the highest value is the best; auto: decided by the metric or its "
    "name.",
)
@click.option(
    "--restore_best_weights",
    is_flag=True,
    help="Write the model of the best checkpoint, not of the last step, as with early stopping.",
)
@click.option(
    "--deterministic/--no-deterministic",
    default=_DEFAULTS.deterministic,
    show_default=True,
    help="Give bit-identical results on the same machine.",
)
@training_workers_options
@click.option(
    "--gpus_per_worker",
    default=Workers.gpus,
    show_default=True,
    help="Number of GPUs reserved for each worker.",
)
@click.option(
    "--give_up_after",
    metavar="SECONDS",
    default=Workers.give_up_after_s,
    show_default=True,
    help="Fail if there are too few workers for this long.",
)
@click.option(
    "--heartbeat_timeout",
    metavar="SECONDS",
    default=Workers.heartbeat_timeout_s,
    show_default=True,
    help="Stop waiting for a worker that has sent no heartbeat for this long.",
)
@click.option(
    "--join_timeout",
    metavar="SECONDS",
    default=Workers.join_timeout_s,
    show_default=True,
    help="How long to wait for a slow but live worker; must exceed the duration of a step.",
)
@click.option(
    "--batch_timeout",
    metavar="SECONDS",
    default=Workers.batch_timeout_s,
    show_default=True,
    help="Replace a worker that takes longer for a batch than both this and ten times the slowest "
    "batch so far.",
)
@click.option(
    "--sum_timeout",
    metavar="SECONDS",
    default=Workers.sum_timeout_s,
    show_default=True,
    help="Retry an all-reduce that takes longer than both this and ten times the slowest one so "
    "far.",
)
@click.option(
    "--transfer_timeout",
    metavar="SECONDS",
    default=Workers.transfer_timeout_s,
    show_default=True,
    help="Abandon a state transfer to a worker if nothing has arrived for this long.",
)
@click.option(
    "--priority",
    type=click.Choice(get_args(Priority)),
    default=Workers.priority,
    show_default=True,
    help="Priority among jobs on one cluster: a low one shrinks to its minimum of workers while a "
    "high one waits for workers, and grows back.",
)
@click.option(
    "--skip_bad_records",
    is_flag=True,
    help="Skip the records of a batch that has killed five workers, instead of ending the job; at "
    "most 1% of all records, or 10 minibatches. Needs --num_workers.",
)
@tracking_options
@click.option(
    "--input_fn", metavar="NAME", help="Name of the input function, instead of the model's own."
)
@click.option(
    "--loss", metavar="NAME", help="Name of the loss function, instead of the model's own."
)
@click.option(
    "--optimizer", metavar="NAME", help="Name of the optimizer, instead of the model's own."
)
@click.option(
    "--eval_metrics_fn",
    metavar="NAME",
    help="Name of the metrics function, instead of the model's own.",
)
@click.option(
    "--dialect",
    metavar="NAME",
    help="Dialect of the model file, if it could be read in several ways: "
    f"{', '.join(dialect.NAME for dialect in DIALECTS)}.",
)
@click.option("--engine", metavar="NAME", help="Train on an engine of an installed plugin.")
@page_option
@click.option("--dry_run", is_flag=True, help="Print the job and exit.")
@click.option(
    "--quiet",
    is_flag=True,
    help="Print only the result: no progress, no notes. `elasticdl job logs OUTPUT` prints them.",
)
@cluster_options
def train(*, with_page: bool | None, dry_run: bool, quiet: bool, **options: Any) -> None:
    """Train a model and write a TrainedModel to --output, or resume training.

    Run the same command to resume interrupted training, even after `kill -9`; the weights are the
    same as those of an uninterrupted run. With more epochs than before, training continues.

    \b
    Examples:
      elasticdl train --model_def=mnist --data="data/train/*.recordio" --output=my_model
      elasticdl train --model_zoo=$HOME/work --model_def=fintech.MyKerasModel \\
          --input_fn=fintech.credit_data_processor \\
          --params="hidden_units=[10, 100, 20, 5], learning_rate=0.01" \\
          --data="gs://bucket/train/*.recordio" --output=my_model
      elasticdl train --spec=model.yml --data="data/train/*.recordio" --output=my_model
      elasticdl train --model_def=mnist --data="data/train/*.recordio" --output=my_model \\
          --num_workers=2..4
      elasticdl train --model_zoo=$HOME/work --model_def=fintech.MyKerasModel \\
          --data="s3://bucket/train/*.recordio" --output=s3://bucket/my_model \\
          --num_workers=2..4 --cluster=kubernetes \\
          --docker_image_repository=registry.example/team/fintech
    """
    asked, cluster = take_cluster_options(options)
    job = job_options.training_job(**options)
    if dry_run:
        echo(job.to_json())
        return
    if cluster is not None:
        from elasticdl.cli.cluster_run import run_on_cluster  # noqa: PLC0415 - imports an extra

        run_on_cluster(
            job, cluster, asked, quiet=quiet, with_page=is_page_wanted(with_page, quiet=quiet)
        )
        return
    wanted = job.output if is_page_wanted(with_page, quiet=quiet) else None
    with page_in_pod(job.output) or page_of(wanted):
        outcome = api.run(job, reporter_for(quiet))
    if not outcome.already_done:
        echo(f"Trained {counted(outcome.step, 'step')}: {outcome.output}")
    validated = any(name.startswith("val_") for name in outcome.metrics)
    # Otherwise they are read as the quality of the model.
    print_metrics(outcome.metrics, "" if validated else "training data")
    if quiet and outcome.restored:
        # Otherwise a note has said so.
        echo(outcome.restored)
    if not quiet and not outcome.already_done and not outcome.stopped:
        model = shlex.quote(job.output or "")
        echo(
            "Next: elasticdl predict "
            f"--trained_model={model} --data=FILES --output=predictions.csv",
            err=True,
        )
