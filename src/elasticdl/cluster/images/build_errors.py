"""Converts errors of an engine, pip or a registry to messages that suggest a fix.

Pure: the requested build and the printed output in, one error out.

Callers: `docker.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from elasticdl.cluster.command import ZOO
from elasticdl.cluster.images.dockerfile import MARK
from elasticdl.cluster.images.names import registry_of
from elasticdl.cluster.images.requirements import line_of
from elasticdl.errors import ElasticDLError, UnavailableError, UsageError

_SHOWN_LINES = 12
_NO_BREAK = re.compile(r"\x1b\[[0-9;]*m")
_OF_LINE = re.compile(rf"\(from (?:-r {ZOO}/(\S+) \(line (\d+)\)|line (\d+) of {ZOO}/([^\s)]+))")
_NOT_FOUND = re.compile(r"No matching distribution found for (\S+)")
_WANTED = re.compile(r"The user requested (?!\(constraint\))(.+)")
_CONSTRAINT = re.compile(r"The user requested \(constraint\) (.+)")
_NO_CONNECTION = (
    "connection broken by",
    "Temporary failure in name resolution",
    "dial tcp",
    "i/o timeout",
    "no such host",
    "connection refused",
    "connection reset",
    "TLS handshake",
    "x509:",
    "server gave HTTP response to HTTPS client",
    "Client.Timeout exceeded",
)
_REFUSED = ("unauthorized", "denied", "authentication required", "no basic auth credentials", "401")
# Not "Not Found": podman answers with it, because it cannot query registries.
_GONE = ("manifest unknown", "name unknown", "no such manifest")


@dataclass(frozen=True)
class ImageRequest:
    """What an image is built from, so that errors of the build can name the faulty part.

    Attributes:
        base_image: The image to build on, as in `ImageOptions`.
        index_url: Package index; None means pip's own.
        requirements: Requirements files: path in the zoo -> content.
    """

    base_image: str
    index_url: str | None = None
    requirements: Mapping[str, str] = field(default_factory=dict)


def build_failed(
    error: str, output: Sequence[str], step: int, wanted: ImageRequest
) -> ElasticDLError:
    """Convert the output of a failed build to an error with advice.

    Args:
        error: The engine's message.
        output: Output of the failed step, as lines.
        step: Number of that step in the Dockerfile; 0 or 1 is its FROM.
        wanted: The requested image.

    Returns:
        An `UnavailableError` if a registry or an index cannot be reached, else a `UsageError`.
    """
    printed = [_NO_BREAK.sub("", line).rstrip() for line in output if line.strip()]
    text = "\n".join(printed)
    if "/bin/sh" in error and "no such file" in error:
        return UsageError(_unfit("shell", wanted))
    for line in printed:
        if line.startswith(MARK):
            return UsageError(_unfit(line.removeprefix(MARK).strip(), wanted))
    if step <= 1:
        return _base_missing(error, wanted)
    for found in (_network(text, wanted), _requirement(text, wanted)):
        if found is not None:
            return found
    shown = "\n  ".join(printed[-_SHOWN_LINES:])
    return UsageError(f"The image cannot be built: {error.strip()}\n  {shown}".rstrip())


def push_failed(error: str, repository: str) -> ElasticDLError:
    """Convert the failure of a push to an error with advice.

    Args:
        error: The engine's message.
        repository: The repository that was pushed to.

    Returns:
        An `UnavailableError` if the registry cannot be reached, else a `UsageError`.
    """
    registry, error = registry_of(repository), error.strip()
    low = error.lower()
    if any(word.lower() in low for word in _NO_CONNECTION):
        insecure = (
            f" The registry speaks HTTP: add it to the engine's insecure registries ({registry})."
            if "HTTP response to HTTPS" in error or "x509" in error
            else ""
        )
        return UnavailableError(f"The registry {registry} cannot be reached: {error}.{insecure}")
    if any(word in low for word in _REFUSED):
        return UsageError(
            f"The registry {registry} rejected the image {repository}: {error}. Log in with  "
            f"docker login {registry}  as a user who may push there, and run the command again."
        )
    return UsageError(f"The image cannot be pushed to {repository}: {error}.")


def is_gone(error: str) -> bool:
    """Return whether a registry reports that it does not have the image."""
    return any(word in error.lower() for word in _GONE)


def gone(name: str) -> UsageError:
    """Build the error for an image that its registry does not have."""
    return UsageError(
        f"The registry {registry_of(name)} has no image {name}: it was deleted, or never pushed. "
        "Build one with  elasticdl cluster image  and set it with --image."
    )


def _unfit(what: str, wanted: ImageRequest) -> str:
    start = f"--base_image={wanted.base_image}"
    if what == "shell":
        return f"{start}: it has no /bin/sh. The image needs a shell, Python and pip."
    if what == "python":
        return f"{start}: it has no python3 of version 3.11 or newer with pip."
    return (
        f"{start}: the {what} was not found by a login shell (bash -lc), in which KubeRay starts "
        "Ray. The image needs bash, and python3 on its PATH."
    )


def _base_missing(error: str, wanted: ImageRequest) -> ElasticDLError:
    if any(word.lower() in error.lower() for word in _NO_CONNECTION):
        return UnavailableError(
            f"--base_image={wanted.base_image}: its registry cannot be reached: {error.strip()}."
        )
    return UsageError(
        f"--base_image={wanted.base_image}: the image does not exist, or you are not allowed to "
        f"pull it: {error.strip()}. Check the name. For a private registry:  docker login "
        f"{registry_of(wanted.base_image)}"
    )


def _network(text: str, wanted: ImageRequest) -> ElasticDLError | None:
    if not any(word in text for word in _NO_CONNECTION[:2]):
        return None
    index = wanted.index_url or "of pip (pypi.org)"
    return UnavailableError(
        f"The package index {index} cannot be reached from the build. Set another index with "
        "--index_url, or a proxy with --build_proxy; with --build_network=host the build uses this "
        "machine's network."
    )


def _requirement(text: str, wanted: ImageRequest) -> UsageError | None:
    """Build the error for a requirement that pip cannot satisfy; None if that is not the error.

    Args:
        text: Output of pip.
        wanted: The requested image, to name the file and line of the requirement.
    """
    index = wanted.index_url or "pip's own index"
    errors = [each for each in text.splitlines() if each.startswith("ERROR:")]
    place = _OF_LINE.search("\n".join(errors))
    missing = _NOT_FOUND.search(text)
    conflicts, constraints = _WANTED.findall(text), _CONSTRAINT.findall(text)
    line = None
    if missing or conflicts:
        line = line_of(wanted.requirements, missing[1] if missing else conflicts[0].strip())
    if place:
        where = f"{place[1] or place[4]}:{place[2] or place[3]}"
    elif line is not None:
        where = line.where
    else:
        where = None
    reason = errors[0].removeprefix("ERROR:").strip() if errors else ""
    if conflicts and constraints and where:
        pinned = ", ".join(dict.fromkeys(each.strip() for each in constraints))
        return UsageError(
            f"{where}: {conflicts[0].strip()} conflicts with the versions that ElasticDL was "
            f"tested with: {pinned}. Require a compatible version, or lock other versions with "
            "--constraints."
        )
    if missing and where:
        return UsageError(f"{where}: {missing[1]} is not on {index} for this platform: {reason}")
    if missing:
        return UsageError(
            f"{missing[1]}, which ElasticDL needs, is not on {index} for this platform. Use an "
            "index that has it (--index_url, --extra_index_url), lock another version with "
            "--constraints, or use a base image that has it (--base_image)."
        )
    if where and reason:
        return UsageError(f"{where}: {reason}")
    return None
