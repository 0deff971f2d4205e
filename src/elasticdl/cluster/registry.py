"""Checks whether an image exists in its registry, without credentials.

    HEAD /v2/NAME/manifests/REFERENCE  --401-->  anonymous token  -->  HEAD again

The result is valid for this machine only: a cluster may have other credentials, and may reach a
registry that this machine cannot. So only "exists" and "does not exist" are certain.

The protocol is that of OCI (https://github.com/opencontainers/distribution-spec) and Docker
(https://distribution.github.io/distribution/spec/auth/token/). Callers: `check.py`, and `api.py`
when no container engine is available.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from elasticdl.cluster.findings import ClusterFinding, ClusterVerdict, missing
from elasticdl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMEOUT_S = 5.0
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 401, 403, 404
_DEFAULT_TAG = "latest"
# Names without a host refer to this registry, whose API has another host name.
_DEFAULT_REGISTRY, _ITS_API = "docker.io", "registry-1.docker.io"
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json, "
    "application/vnd.oci.image.manifest.v1+json, "
    "application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.docker.distribution.manifest.v2+json"
)
_LOCAL = re.compile(r"(localhost|127\.[\d.]+|\[::1\])(:\d+)?")
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"{_PART}(/{_PART})*")
_TAG = re.compile(r"\w[\w.-]{0,127}")
_DIGEST = re.compile(r"[A-Za-z][\w.+-]*:[0-9a-fA-F]{32,}")
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class ImageReference:
    """A parsed image reference, as Docker and Kubernetes read it.

    Attributes:
        registry: Host, with a port if it has one.
        name: Path of the image in the registry.
        reference: A digest or a tag.
    """

    registry: str
    name: str
    reference: str

    @property
    def is_pinned(self) -> bool:
        """Whether the reference has a digest, so that it always refers to the same image."""
        return ":" in self.reference


def parse_image(text: str) -> ImageReference | None:
    """Parse an image reference; return None if it is not valid.

    Example:
        >>> parse_image("python:3.11")
        ImageReference(registry='docker.io', name='library/python', reference='3.11')
        >>> parse_image("registry.example:5000/team/app")
        ImageReference(registry='registry.example:5000', name='team/app', reference='latest')
    """
    rest, _, digest = text.partition("@")
    host, slash, path = rest.partition("/")
    if not slash or not (set(host) & {".", ":"} or host == "localhost"):
        host, path = _DEFAULT_REGISTRY, rest if slash else f"library/{rest}"
    name, colon, tag = path.partition(":")
    if not _NAME.fullmatch(name) or (colon and not _TAG.fullmatch(tag)):
        return None
    if ("@" in text and not _DIGEST.fullmatch(digest)) or not re.fullmatch(r"[\w.:\[\]-]+", host):
        return None
    return ImageReference(host, name, digest or tag or _DEFAULT_TAG)


def image(text: str) -> ClusterFinding:
    """Check whether an image exists in its registry, for the cluster check.

    This takes a few seconds at most. If the registry cannot be reached, no error is raised: the
    verdict is `UNKNOWN`, because the cluster may be able to reach it.
    """
    wanted = parse_image(text)
    if wanted is None:
        return missing(
            "image",
            f"{text!r} is not an image reference",
            "Expected HOST/NAME:TAG or, better, HOST/NAME@sha256:DIGEST.",
        )
    try:
        return _judged(wanted, *_head(wanted))
    except (OSError, ValueError, HTTPException) as error:
        return ClusterFinding(
            "image",
            ClusterVerdict.UNKNOWN,
            f"{wanted.registry} cannot be reached from this machine ({_reason(error)})",
            "The cluster may still be able to reach it; if not, job show reports it.",
        )


def check_is_there(text: str) -> None:
    """Raise an error if an image does not exist in its registry.

    An inconclusive answer, such as a request for credentials, is ignored.

    Args:
        text: Name of the image.

    Raises:
        UsageError: The image was deleted, or never pushed.
    """
    found = image(text)
    if found.verdict is ClusterVerdict.MISSING:
        raise UsageError(f"{text}: {found.message}. {found.advice}")


def _judged(wanted: ImageReference, status: int, digest: str) -> ClusterFinding:
    if status in {_UNAUTHORIZED, _FORBIDDEN}:
        return ClusterFinding(
            "image",
            ClusterVerdict.UNKNOWN,
            f"cannot check from here: {wanted.registry} requires credentials for {wanted.name}",
            "The pods need them too: --image_pull_secret=NAME.",
        )
    if status == _NOT_FOUND:
        return missing(
            "image",
            f"{wanted.registry} has no {wanted.name} {wanted.reference}",
            "Push it, or correct --image.",
        )
    if status >= 300:  # noqa: PLR2004 - existence unknown
        return ClusterFinding(
            "image",
            ClusterVerdict.UNKNOWN,
            f"cannot check from here: {wanted.registry} replied with status {status}",
        )
    if wanted.is_pinned:
        return ClusterFinding("image", ClusterVerdict.OK, f"{wanted.name} is in {wanted.registry}")
    better = f"--image={wanted.registry}/{wanted.name}@{digest}" if digest else "use its digest"
    return ClusterFinding(
        "image",
        ClusterVerdict.WARNING,
        f"{wanted.name} {wanted.reference} is in {wanted.registry}; a tag may refer to another "
        "image later",
        f"Pin it: {better}",
    )


def _head(wanted: ImageReference) -> tuple[int, str]:
    """Ask a registry whether it has an image; return the HTTP status and the image's digest."""
    host = _ITS_API if wanted.registry == _DEFAULT_REGISTRY else wanted.registry
    # As container engines do: a registry on this machine needs no certificate.
    scheme = "http" if _LOCAL.fullmatch(host) else "https"
    url = f"{scheme}://{host}/v2/{wanted.name}/manifests/{wanted.reference}"
    headers = {"Accept": _MANIFESTS}
    status, answered, _ = _request("HEAD", url, headers)
    if status == _UNAUTHORIZED:
        token = _anonymous_token(answered.get("www-authenticate", ""), scheme)
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
            status, answered, _ = _request("HEAD", url, headers)
    return status, answered.get("docker-content-digest", "")


def _anonymous_token(challenge: str, scheme: str) -> str | None:
    """Request a token for reading an image without credentials; None if there is none.

    Args:
        challenge: The `WWW-Authenticate` header of the registry's response; it contains the address
            to request the token from.
        scheme: URL scheme of the registry.
    """
    kind, _, rest = challenge.partition(" ")
    asked = dict(_PARAMETER.findall(rest))
    realm = asked.pop("realm", "")
    if kind.lower() != "bearer" or urlsplit(realm).scheme not in {"https", scheme}:
        return None
    query = urlencode({name: asked[name] for name in ("service", "scope") if name in asked})
    join = "&" if urlsplit(realm).query else "?"
    status, _, body = _request("GET", f"{realm}{join}{query}", {})
    if status != 200:  # noqa: PLR2004 - OK
        return None
    found = json.loads(body)
    token = (found.get("token") or found.get("access_token")) if isinstance(found, dict) else None
    return token if isinstance(token, str) and token.isprintable() else None


def _request(
    method: str, url: str, headers: Mapping[str, str]
) -> tuple[int, Mapping[str, str], bytes]:
    """Send an HTTP request; return the status, the headers by lower-case name, and the body."""
    asked = urllib.request.Request(url, method=method)  # noqa: S310 - schemes are checked above
    for name, value in headers.items():
        # Not sent again when the registry redirects.
        asked.add_unredirected_header(name, value)
    try:
        answer = urllib.request.urlopen(asked, timeout=_TIMEOUT_S)  # noqa: S310 - as above
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        named = {name.lower(): value for name, value in answer.headers.items()}
        return int(answer.status), named, answer.read(_MAX_BYTES)


def _reason(error: BaseException) -> str:
    reason = str(getattr(error, "reason", "") or error)
    return reason.splitlines()[0] if reason else type(error).__name__
