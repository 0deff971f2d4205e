"""From a model zoo to an image that a cluster can pull: collect, build, push, name by its digest.

Nothing is sent to the engine before all that can be checked here is checked.

Callers: `api.py`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from elasticdl import user_files
from elasticdl.cluster.images.complaints import Wanted
from elasticdl.cluster.images.context import write_context
from elasticdl.cluster.images.dockerfile import dockerfile
from elasticdl.cluster.images.lock import lock, own
from elasticdl.cluster.images.names import image, repository
from elasticdl.cluster.images.requirements import (
    check_lines,
    has_credentials,
    requirement_files,
)
from elasticdl.cluster.images.wheel import wheel
from elasticdl.cluster.images.zoo_files import ZooFiles, zoo_files
from elasticdl.errors import UsageError
from elasticdl.zoo import open_zoo

if TYPE_CHECKING:
    from elasticdl.cluster.images.docker import Engine

Tell: TypeAlias = Callable[[str], None]

DEFAULT_BASE = f"docker.io/library/python:{sys.version_info.major}.{sys.version_info.minor}-slim"
_MAX_REQUIREMENTS_BYTES = 2**20
# Engines know these, so that they reach commands of the build and stay out of the image.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")


@dataclass(frozen=True)
class ImageOptions:
    """How an image is built.

    Attributes:
        repository: Where it is pushed to.
        base_image: What it is built on; it has Python and pip.
        index_url: Index of packages; None is pip's own.
        extra_index_urls: More indexes.
        proxy: Of the build's network; None is none.
        network: The build's network; None is the engine's default.
        platform: What the image is for; None is what the engine runs on.
        constraints: File with the versions of packages; None takes those that are installed here.
    """

    repository: str
    base_image: str = DEFAULT_BASE
    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    proxy: str | None = None
    network: str | None = None
    platform: str | None = None
    constraints: str | None = None


def build_image(zoo: str | None, options: ImageOptions, engine: Engine, tell: Tell) -> str:
    """Build and push the image of a model zoo.

    Args:
        zoo: As `zoo.open_zoo` takes it; None for the prebuilt models.
        options: How.
        engine: What builds and pushes it.
        tell: Is given lines for people.

    Returns:
        Its name with its digest: `registry/team/app@sha256:...`.

    Raises:
        UsageError: Something of it is not there, does not fit, or may not enter an image.
        UnavailableError: The engine, a registry or the index cannot be reached.
    """
    check(options)
    opened = open_zoo(zoo)
    # The prebuilt models come with the wheel.
    files = ZooFiles() if opened.is_prebuilt else zoo_files(opened.folder)
    if files.keys:
        tell(f"Left out of the image, because they are or hold keys: {', '.join(files.keys)}")
    requirements = requirement_files(_texts(files))
    target = options.platform or engine.platform
    found = own()
    locked = lock(target, found)
    constraints = _joined(locked.constraints)
    if options.constraints is not None:
        constraints = _read(options.constraints)
        check_lines(options.constraints, constraints)
    elif locked.unknown:
        tell(f"Not installed here, so that pip chooses the version: {', '.join(locked.unknown)}")
    wheel_name, wheel_bytes = wheel(found)
    wanted = Wanted(options.base_image, options.index_url, requirements)
    labels = {"org.elasticdl.version": found.version}
    if opened.commit is not None:
        labels["org.opencontainers.image.revision"] = opened.commit
    parts = {
        "Dockerfile": dockerfile(options.base_image, wheel_name, [*requirements], labels).encode(),
        "elasticdl/constraints.txt": constraints.encode(),
        "elasticdl/dependencies.txt": _joined(locked.requirements).encode(),
        f"elasticdl/{wheel_name}": wheel_bytes,
        **{f"requirements/{path}": text.encode() for path, text in requirements.items()},
    }
    extra_indexes = options.extra_index_urls
    if not extra_indexes and options.index_url is None and options.constraints is None:
        extra_indexes = locked.extra_indexes
    with tempfile.TemporaryFile() as context:
        write_context(context, parts, files)
        tell(f"Builds an image for {target} on {options.base_image}")
        tag = engine.build(
            context,
            options.repository,
            arguments=_arguments(options, extra_indexes),
            platform=target,
            network=options.network,
            wanted=wanted,
            tell=tell,
        )
    tell(f"Pushes {options.repository}:{tag}")
    digest = engine.push(options.repository, tag, tell)
    return f"{options.repository}@{digest}"


def check(options: ImageOptions) -> None:
    """Raise if an image cannot be built so.

    Raises:
        UsageError: A name is none, or a URL holds a password, which would be in the image.
    """
    repository(options.repository)
    image(options.base_image, "--base_image")
    urls = {
        "index_url": [options.index_url],
        "extra_index_url": options.extra_index_urls,
        "build_proxy": [options.proxy],
    }
    for flag, given in urls.items():
        for url in filter(None, given):
            if "://" not in url:
                raise UsageError(f"--{flag}={url} is no URL; expected https://host/path.")
            if has_credentials(url):
                shown = f"{url.partition('://')[0]}://...@{url.rpartition('@')[2]}"
                raise UsageError(
                    f"--{flag}={shown} holds a password or token. The build's arguments stay "
                    "readable in the image, so that it would be told to everyone who can pull it. "
                    "Use a mirror in your network that needs none, or a base image that has the "
                    "packages (--base_image)."
                )


def _arguments(options: ImageOptions, extra_indexes: Iterable[str]) -> dict[str, str]:
    arguments = {}
    if options.index_url is not None:
        arguments["PIP_INDEX_URL"] = options.index_url
    joined = " ".join(extra_indexes)
    if joined:
        arguments["PIP_EXTRA_INDEX_URL"] = joined
    if options.proxy is not None:
        arguments.update(dict.fromkeys(_PROXIES, options.proxy))
    return arguments


def _texts(files: ZooFiles) -> dict[str, str]:
    """Return the text files at hand for requirements: path -> text."""
    return {
        entry.path: entry.source.read_text(errors="replace")
        for entry in files.entries
        if entry.link is None
        and entry.path.endswith((".txt", ".in"))
        and entry.source.stat().st_size <= _MAX_REQUIREMENTS_BYTES
    }


def _read(path: str) -> str:
    try:
        return user_files.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--constraints={path}: {error}") from error


def _joined(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
