"""`elasticdl cluster`: commands that prepare a Kubernetes cluster for jobs."""

from __future__ import annotations

import click

from elasticdl.cli import cluster_check, cluster_image


@click.group()
def cluster() -> None:
    """Prepare a Kubernetes cluster for jobs."""


cluster.add_command(cluster_check.check)
cluster.add_command(cluster_image.image)
