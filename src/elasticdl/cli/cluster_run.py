"""Runs a job on a cluster from the command line: submit, follow, exit with the job's code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import yaml

from elasticdl import api, user_files
from elasticdl.cli.printable import echo
from elasticdl.cluster import rayjob
from elasticdl.errors import UsageError

if TYPE_CHECKING:
    from elasticdl.cli.cluster_options import ClusterRequest
    from elasticdl.cluster.options import ClusterOptions
    from elasticdl.job import Job


def run_on_cluster(
    job: Job,
    options: ClusterOptions,
    asked: ClusterRequest,
    *,
    quiet: bool,
    with_page: bool = False,
) -> None:
    """Print a job's manifest (RayJob), or submit and follow the job, as the command line requests.

    Args:
        job: The job.
        options: Cluster options of the job.
        asked: Whether to submit, follow or only print the job, and which context to use.
        quiet: Whether to print no messages.
        with_page: Whether to serve the job's page on this machine while the job is followed.

    Raises:
        ElasticDLError: The job cannot be submitted; or it failed, with its exit code.
    """
    patch = None if asked.patch is None else _patch(asked.patch)
    if asked.manifest:
        made = rayjob.manifest(job, options, patch)
        echo(yaml.safe_dump(made, sort_keys=False, allow_unicode=True, width=100).rstrip())
        return
    if asked.build is None:
        api.check_image(options.image)
    api.run_on_cluster(
        job,
        options,
        context=asked.context,
        patch=patch,
        detach=asked.detach,
        build=asked.build,
        with_page=with_page,
        print_fn=(lambda _: None) if quiet else _print_line,
    )


def _print_line(line: str) -> None:
    click.echo(line, err=True)


def _patch(path: str) -> dict[str, Any]:
    try:
        found = yaml.safe_load(user_files.read_text(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--manifest_patch={path}: {error}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(
            f"{path}: expected YAML to merge into the RayJob, such as\n"
            "  spec:\n"
            "    ttlSecondsAfterFinished: 60"
        )
    return found
