"""The options that say how an image is built."""

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
    """Give a command the options of `ImageOptions`.

    Args:
        command: The command.
        option: As `click.option`.
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
            help="What the image is built on: it has Python 3.11 or newer, pip and bash. "
            "[default: Docker's python:3.X-slim, with this Python's version]",
        ),
        option("--index_url", metavar="URL", help="Package index of the build; pip's own."),
        option(
            "--extra_index_url",
            metavar="URL",
            multiple=True,
            help="Another package index of the build; may be given again.",
        ),
        option("--build_proxy", metavar="URL", help="Proxy of the build; it is not in the image."),
        option(
            "--build_network",
            metavar="NAME",
            help="Network of the build, such as host; the engine's default.",
        ),
        option(
            "--platform",
            metavar="OS/ARCH",
            help="What the image is for, such as linux/amd64; this machine's engine.",
        ),
        option(
            "--constraints",
            metavar="FILE",
            help="Versions of packages in the image, as a constraints file of pip; those that are "
            "installed here.",
        ),
    )


def taken_image(options: dict[str, Any]) -> ImageOptions | None:
    """Take the options of an image out of a command's options; None without a repository.

    Raises:
        UsageError: A value cannot be.
        MissingExtraError: A package that building needs is not installed.
    """
    given = {field: options.pop(flag) for flag, field in _FIELDS.items()}
    if not given["repository"]:
        return None
    from elasticdl import api  # noqa: PLC0415 - not for `--help`

    return api.image_options(**{name: value for name, value in given.items() if value})


def flags() -> tuple[str, ...]:
    """Return the names of the options."""
    return tuple(_FIELDS)
