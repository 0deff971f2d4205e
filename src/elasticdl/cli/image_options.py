"""Options of the commands that can build an image for jobs on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from elasticdl.cli.options import with_options

if TYPE_CHECKING:
    from elasticdl.cluster.images.build import ImageOptions

_Command = TypeVar("_Command", bound=Callable[..., Any])

REPOSITORY = "docker_image_repository"
# Flag -> field of `ImageOptions`.
_FIELDS = {
    REPOSITORY: "repository",
    "base_image": "base_image",
    "index_url": "index_url",
    "extra_index_url": "extra_index_urls",
    "build_proxy": "proxy",
    "build_network": "network",
    "platform": "platform",
    "constraints": "constraints",
}


def image_options(
    command: _Command, option: Callable[..., Callable[[_Command], _Command]] = click.option
) -> _Command:
    """Add the options for building an image (see `ImageOptions`) to a command; return the command.

    Args:
        command: The command.
        option: Called with the arguments of `click.option`, in its place. `cluster_options.py`
            passes one that makes the help list these options in a separate section.
    """
    return with_options(
        command,
        option(
            f"--{REPOSITORY}",
            metavar="REPOSITORY",
            help="Build an image with your model zoo, push it to this repository "
            "(registry/team/app), and use it by its digest.",
        ),
        option(
            "--base_image",
            metavar="IMAGE",
            help="Base image, with Python 3.11 or newer, pip and bash. "
            "[default: Docker's python:3.X-slim, with this Python's version]",
        ),
        option("--index_url", metavar="URL", help="Package index of the build. [default: pip's]"),
        option(
            "--extra_index_url",
            metavar="URL",
            multiple=True,
            help="Another package index of the build; can be repeated.",
        ),
        option("--build_proxy", metavar="URL", help="Proxy of the build; not stored in the image."),
        option(
            "--build_network",
            metavar="NAME",
            help="Network of the build, such as host. [default: the engine's]",
        ),
        option(
            "--platform",
            metavar="OS/ARCH",
            help="Platform of the image, such as linux/amd64. [default: that of this machine's "
            "engine]",
        ),
        option(
            "--constraints",
            metavar="FILE",
            help="Versions of packages in the image, as a pip constraints file. [default: those "
            "installed here]",
        ),
    )


def take_image_options(options: dict[str, Any]) -> ImageOptions | None:
    """Remove the image options from a command's options, and return them as `ImageOptions`.

    Returns None if no repository was given: then no image is built.

    Raises:
        UsageError: A value is invalid.
        MissingExtraError: A package that building needs is not installed.
    """
    given = {field: options.pop(flag) for flag, field in _FIELDS.items()}
    if not given["repository"]:
        return None
    from elasticdl import api  # noqa: PLC0415 - not for `--help`

    return api.image_options(**{name: value for name, value in given.items() if value})


def flags() -> tuple[str, ...]:
    """Return the names of the options that `image_options` adds, without the leading `--`.

    By these, a command separates the image options from its others.
    """
    return tuple(_FIELDS)
