"""`elasticdl cluster image`: builds and pushes an image for jobs."""

from __future__ import annotations

from typing import Any

import click

from elasticdl import api
from elasticdl.cli.image_options import REPOSITORY, image_options, take_image_options
from elasticdl.cli.printable import echo, printable
from elasticdl.errors import UsageError


@click.command("image")
@click.option(
    "--model_zoo",
    metavar="DIR|URL",
    help="Folder with your model files, or a git repository (URL@commit). Without it, the image "
    "has the models of `elasticdl zoo list`.",
)
@image_options
@click.option("--quiet", is_flag=True, help="Print only the name of the image.")
def image(*, model_zoo: str | None, quiet: bool, **options: Any) -> None:
    """Build the image of a model zoo, push it, and print its name with its digest.

    It contains this version of ElasticDL, the packages installed with it here, the packages of the
    zoo's requirements.txt, and the zoo at /model_zoo/custom. Docker or podman builds it
    (DOCKER_HOST). Hidden files, keys, and files listed in .dockerignore and .gitignore are
    excluded.

    \b
    Examples:
      elasticdl cluster image --model_zoo=$HOME/work \\
          --docker_image_repository=registry.example/team/fintech
      elasticdl train ... --cluster=kubernetes --image=$(elasticdl cluster image --quiet ...)
    """
    asked = take_image_options(options)
    if asked is None:
        raise UsageError(
            f"Missing: --{REPOSITORY}, the repository to push the image to, such as "
            "registry.example/team/app."
        )
    built = api.build_image(model_zoo, asked, (lambda _: None) if quiet else _print_line)
    echo(built)


def _print_line(line: str) -> None:
    click.echo(printable(line), err=True)
