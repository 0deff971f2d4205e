"""Image builder: packs a model zoo into an image, pushes it, and returns its digest.

Everything that can be checked locally is checked before anything is sent to the engine.

Callers: `api.py`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from elasticdl import user_files
from elasticdl.cluster.images.build_errors import ImageRequest
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
    from elasticdl.cluster.images.docker import DockerEngine

Tell: TypeAlias = Callable[[str], None]

DEFAULT_BASE = f"docker.io/library/python:{sys.version_info.major}.{sys.version_info.minor}-slim"
_MAX_REQUIREMENTS_BYTES = 2**20
# Engines predefine these: build commands see them, but the image does not contain them.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")


@dataclass(frozen=True)
class ImageOptions:
    """Options for building an image.

    Attributes:
        repository: Repository to push the image to, such as `registry/team/app`.
        base_image: Image to build on; it must have Python and pip.
        index_url: Package index. None: pip's default.
        extra_index_urls: Additional package indexes.
        proxy: URL of an HTTP proxy for the commands of the build; None means none.
        network: Network of the build, as in `docker build --network`. None: the engine's default.
        platform: Platform of the image, such as `linux/amd64`. None: that of the engine.
        constraints: Constraints file of pip, with package versions. None: use the versions that are
            installed on this machine.
    """

    repository: str
    base_image: str = DEFAULT_BASE
    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    proxy: str | None = None
    network: str | None = None
    platform: str | None = None
    constraints: str | None = None


def build_image(
    zoo: str | None, options: ImageOptions, engine: DockerEngine, print_fn: Tell
) -> str:
    """Build and push the image of a model zoo.

    Args:
        zoo: Folder or git URL of the model zoo; None for the prebuilt models.
        options: The build options.
        engine: The engine that builds and pushes it.
        print_fn: Called with progress lines for the user.

    Returns:
        The image's name with its digest: `registry/team/app@sha256:...`.

    Raises:
        UsageError: Something in the zoo or the options is missing, invalid or not allowed in an
            image.
        UnavailableError: The engine, a registry or the index cannot be reached.
    """
    check(options)
    opened = open_zoo(zoo)
    # The prebuilt models are part of the wheel.
    files = ZooFiles() if opened.is_prebuilt else zoo_files(opened.folder)
    if files.keys:
        print_fn(
            f"Left out of the image, because they are or contain keys: {', '.join(files.keys)}"
        )
    requirements = requirement_files(_texts(files))
    target = options.platform or engine.platform
    found = own()
    locked = lock(target, found)
    constraints = _joined(locked.constraints)
    if options.constraints is not None:
        constraints = _read(options.constraints)
        check_lines(options.constraints, constraints)
    elif locked.unknown:
        print_fn(f"Not installed here, so pip chooses the version: {', '.join(locked.unknown)}")
    wheel_name, wheel_bytes = wheel(found)
    wanted = ImageRequest(options.base_image, options.index_url, requirements)
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
        print_fn(f"Building an image for {target} on {options.base_image}")
        tag = engine.build(
            context,
            options.repository,
            arguments=_arguments(options, extra_indexes),
            platform=target,
            network=options.network,
            wanted=wanted,
            print_fn=print_fn,
        )
    print_fn(f"Pushing {options.repository}:{tag}")
    digest = engine.push(options.repository, tag, print_fn)
    return f"{options.repository}@{digest}"


def check(options: ImageOptions) -> None:
    """Check the options of an image.

    Raises:
        UsageError: A name is invalid, or a URL contains a password, which would be in the image.
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
                raise UsageError(f"--{flag}={url} is not a URL; expected https://host/path.")
            if has_credentials(url):
                shown = f"{url.partition('://')[0]}://...@{url.rpartition('@')[2]}"
                raise UsageError(
                    f"--{flag}={shown} contains a password or token. Build arguments stay readable "
                    "in the image, so everyone who can pull it could read it. Use a mirror in your "
                    "network that needs none, or a base image that has the packages (--base_image)."
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
    """Read the small .txt and .in files of a zoo, which may hold requirements: path -> content."""
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
