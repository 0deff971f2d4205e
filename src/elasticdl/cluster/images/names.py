"""Names of images: what is typed, what is pushed to, what pods run and a model remembers.

    registry.example:5000/team/fintech              a repository
    registry.example:5000/team/fintech:tag          may be another image tomorrow
    registry.example:5000/team/fintech@sha256:...   one image for ever

Callers: `build.py`, `api.py` and the command line.
"""

from __future__ import annotations

import re

from elasticdl.errors import UsageError

# What the status of a pod has before the name.
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
    """Return the name of an image as a cluster takes it.

    Args:
        text: As typed, or as a pod's status has it.
        flag: Where it was given, for the error.

    Raises:
        UsageError: It is no name of an image.

    Example:
        >>> image("docker-pullable://registry.example/team/app:v1")
        'registry.example/team/app:v1'
    """
    for prefix in _PREFIXES:
        text = text.removeprefix(prefix)
    if not _IMAGE.fullmatch(text):
        raise UsageError(
            f"{flag}={text} is no name of an image; expected registry/team/app@sha256:... or "
            "registry/team/app:tag, in small letters."
        )
    return text


def repository(text: str, flag: str = "--docker_image_repository") -> str:
    """Return a repository that an image is pushed to.

    Raises:
        UsageError: It is none, or names a tag or a digest.
    """
    found = _IMAGE.fullmatch(text)
    if found is None or found[2] or found[3]:
        why = "is no repository" if found is None else "names one image of a repository"
        raise UsageError(
            f"{flag}={text} {why}; expected registry/team/app, in small letters and without a tag: "
            "the image is known by its digest."
        )
    return text


def is_pinned(name: str) -> bool:
    """Return whether a name means one image for ever."""
    return "@sha256:" in name


def registry_of(name: str) -> str:
    """Return the registry that a name leads to.

    Example:
        >>> registry_of("127.0.0.1:5000/app"), registry_of("team/app:v1")
        ('127.0.0.1:5000', 'docker.io')
    """
    host, slash, _ = name.partition("/")
    return host if slash and ("." in host or ":" in host or host == "localhost") else "docker.io"


def recorded(docker_commit_id: str, where: str) -> str:
    """Return the image that a trained model was trained in.

    Args:
        docker_commit_id: What the model says; see `artifacts.trained_model.Description`.
        where: The model's folder, for the error.

    Raises:
        UsageError: It was trained without one.
    """
    if not docker_commit_id:
        raise UsageError(
            f"{where} does not say in which image it was trained: it was trained on a machine, not "
            "on a cluster. Name an image with --image, or a repository to push one to with "
            "--docker_image_repository."
        )
    return image(docker_commit_id, f"{where}: docker_commit_id")
