"""Names of container images: checks names that users type, or that pods and models contain.

    registry.example:5000/team/fintech              a repository
    registry.example:5000/team/fintech:tag          may be a different image tomorrow
    registry.example:5000/team/fintech@sha256:...   always the same image

Callers: `build.py`, `api.py` and the command line.
"""

from __future__ import annotations

import re

from elasticdl.errors import UsageError

# Prefixes of the name in the status of a pod.
_PREFIXES = ("docker-pullable://", "docker://")

# https://github.com/distribution/reference/blob/main/reference.go
_REPOSITORY = (
    r"(?:[\w.-]+(?::\d+)?/)?[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
    r"(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
)
_TAG = r"[\w][\w.-]{0,127}"
_DIGEST = r"sha256:[0-9a-f]{32,64}"
_IMAGE = re.compile(f"({_REPOSITORY})(?::({_TAG}))?(?:@({_DIGEST}))?")


def image(text: str, flag: str = "--image") -> str:
    """Normalize an image name to the form that a cluster accepts.

    Args:
        text: The name, as the user typed it or as a pod's status contains it.
        flag: Flag or file that contains the name, for the error.

    Raises:
        UsageError: The text is not a valid image name.

    Example:
        >>> image("docker-pullable://registry.example/team/app:v1")
        'registry.example/team/app:v1'
    """
    for prefix in _PREFIXES:
        text = text.removeprefix(prefix)
    if not _IMAGE.fullmatch(text):
        raise UsageError(
            f"{flag}={text} is not an image name; expected registry/team/app@sha256:... or "
            "registry/team/app:tag, in lower case."
        )
    return text


def repository(text: str, flag: str = "--docker_image_repository") -> str:
    """Check the name of a repository to push to, and return it.

    Raises:
        UsageError: The name is invalid, or contains a tag or a digest.
    """
    found = _IMAGE.fullmatch(text)
    if found is None or found[2] or found[3]:
        why = "is not a repository" if found is None else "names a single image"
        raise UsageError(
            f"{flag}={text} {why}; expected registry/team/app, in lower case and without a tag: "
            "the image is identified by its digest."
        )
    return text


def is_pinned(name: str) -> bool:
    """Return whether an image name has a digest, so that it always refers to the same image."""
    return "@sha256:" in name


def registry_of(name: str) -> str:
    """Return the registry of an image name.

    Example:
        >>> registry_of("127.0.0.1:5000/app"), registry_of("team/app:v1")
        ('127.0.0.1:5000', 'docker.io')
    """
    host, slash, _ = name.partition("/")
    return host if slash and ("." in host or ":" in host or host == "localhost") else "docker.io"


def recorded(docker_commit_id: str, where: str) -> str:
    """Return the name of the image in which a model was trained, as recorded in the model.

    Args:
        docker_commit_id: The field of this name in the model's description
            (`artifacts.trained_model.Description`): an image, or empty if there was none.
        where: The model's folder, for the error.

    Raises:
        UsageError: The model was not trained in an image.
    """
    if not docker_commit_id:
        raise UsageError(
            f"{where} records no image, because it was not trained on a cluster. Set an image with "
            "--image, or a repository to push one to with --docker_image_repository."
        )
    return image(docker_commit_id, f"{where}: docker_commit_id")
