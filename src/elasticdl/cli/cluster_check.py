"""`elasticdl cluster check`: checks whether a job could be submitted, and what to do if not."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, get_args

import click

from elasticdl import api, job_options
from elasticdl.cli.cluster_options import ray_version
from elasticdl.cli.printable import echo, printable
from elasticdl.cluster.options import ClusterOptions, Resources, Scheduler, parse_quantity

if TYPE_CHECKING:
    from elasticdl.cluster.check import ClusterReport
    from elasticdl.cluster.findings import ClusterFinding

_WORKER, _HEAD = Resources(), ClusterOptions.head
_COLOURS = {"ok": "green", "warning": "yellow", "missing": "red", "unknown": "blue"}
_MIN_WIDTH = 40
# Used in the dry run if no image is named.
_NO_IMAGE = "registry.example/image"


@click.command("check")
@click.option(
    "--context", metavar="NAME", help="Context of the kubeconfig. [default: the current one]"
)
@click.option("--namespace", metavar="NAME", help="Namespace. [default: that of the context]")
@click.option("--image", metavar="IMAGE", help="Check that this image is in its registry.")
@click.option("--num_workers", metavar="N | MIN..MAX", default="2", show_default=True,
              help="Number of workers of the job.")  # fmt: skip
@click.option("--cpus_per_worker", default=_WORKER.cpus, show_default=True, help="Cores: 2, 500m.")
@click.option("--memory_per_worker", default=_WORKER.memory, show_default=True, help="Memory: 8Gi.")
@click.option("--gpus_per_worker", type=click.IntRange(min=0), default=0, show_default=True,
              help="GPUs.")  # fmt: skip
@click.option("--head_memory", default=_HEAD.memory, show_default=True,
              help="Memory of the pod where the driver runs.")  # fmt: skip
@click.option("--priority_class", metavar="NAME", help="PriorityClass of the job's pods.")
@click.option("--queue", metavar="NAME", help="Queue of Kueue or Volcano.")
@click.option("--scheduler", type=click.Choice(get_args(Scheduler)),
              default=ClusterOptions.scheduler, show_default=True,
              help="Scheduler that owns the queue.")  # fmt: skip
@click.option("--env_from_secret", metavar="NAME", multiple=True,
              help="Secret with environment variables; can be repeated.")  # fmt: skip
@click.option("--image_pull_secret", metavar="NAME", multiple=True,
              help="Secret with credentials of the registry; can be repeated.")  # fmt: skip
@click.option("--service_account", metavar="NAME", help="Service account of the pods.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def check(
    *,
    context: str | None,
    namespace: str | None,
    image: str | None,
    num_workers: str,
    cpus_per_worker: str,
    memory_per_worker: str,
    gpus_per_worker: int,
    head_memory: str,
    priority_class: str | None,
    queue: str | None,
    scheduler: Scheduler,
    env_from_secret: tuple[str, ...],
    image_pull_secret: tuple[str, ...],
    service_account: str | None,
    as_json: bool,
) -> int:
    """Check whether a job could be submitted to a Kubernetes cluster.

    It changes nothing there. Each line shows the result of one check:

    \b
      ok       the check passed
      warning  a job can be submitted, but may have a problem: read the message
      missing  a job cannot be submitted, or would not start
      unknown  you do not have the permissions to check this

    \b
    Exit code: 0 if a job could be submitted; 2 if something has to be changed first; 75 if the
    problem may be temporary (a server that does not respond, a quota used up by others).

    \b
    Examples:
      elasticdl cluster check
      elasticdl cluster check --namespace=team --num_workers=2..4 --gpus_per_worker=1
      elasticdl cluster check --json | jq '.findings[] | select(.verdict != "ok")'
    """
    job = job_options.training_job(
        model_def="mnist",
        # Placeholder names: a RayJob is built from this job, but not created, so nothing is read.
        data="s3://bucket/data",
        output="s3://bucket/cluster-check",
        num_workers=num_workers,
        gpus_per_worker=gpus_per_worker,
    )
    options = ClusterOptions(
        image=image or _NO_IMAGE,
        ray_version=ray_version(),
        namespace=namespace,
        worker=Resources(
            parse_quantity("cpus_per_worker", cpus_per_worker),
            parse_quantity("memory_per_worker", memory_per_worker),
        ),
        head=Resources(memory=parse_quantity("head_memory", head_memory)),
        priority_class=priority_class,
        queue=queue,
        scheduler=scheduler,
        env_from_secrets=env_from_secret,
        image_pull_secrets=image_pull_secret,
        service_account=service_account,
    )
    report = api.check_cluster(job, options, context=context, has_image=image is not None)
    if as_json:
        echo(json.dumps(_as_json(report), indent=2))
    else:
        _show(report)
    return report.exit_code


def _show(report: ClusterReport) -> None:
    subjects = max(len(each.subject) for each in report.findings)
    for each in report.findings:
        _show_finding(each, subjects)
    num_missing = sum(each.verdict == "missing" for each in report.findings)
    click.echo()
    if not report.exit_code:
        click.secho("A job can be submitted.", fg="green", bold=True)
    else:
        word = "one requirement is" if num_missing == 1 else f"{num_missing} requirements are"
        click.secho(f"A job cannot run there now: {word} missing.", fg="red", bold=True)


def _show_finding(finding: ClusterFinding, subjects: int) -> None:
    verdicts = max(map(len, _COLOURS))
    verdict = click.style(f"{finding.verdict:{verdicts}}", fg=_COLOURS[finding.verdict], bold=True)
    message, advice = printable(finding.message), printable(finding.advice)
    if not sys.stdout.isatty():
        # One line each, for grep and for logs.
        said = f"{message.removesuffix('.')}. {advice}" if advice else message
        click.echo(f"{verdict}  {finding.subject:{subjects}}  {' '.join(said.split())}")
        return
    indent = " " * (verdicts + subjects + 4)
    width = max(_MIN_WIDTH, shutil.get_terminal_size().columns - len(indent))
    lines = [
        line
        for text in (message, advice)
        for line in textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)
    ]
    click.echo(f"{verdict}  {finding.subject:{subjects}}  {lines[0]}")
    for line in lines[1:]:
        click.echo(f"{indent}{line}")


def _as_json(report: ClusterReport) -> dict[str, object]:
    return {
        "context": report.context,
        "namespace": report.namespace,
        "can_submit": not report.exit_code,
        "exit_code": report.exit_code,
        "findings": [dataclasses.asdict(each) for each in report.findings],
    }
