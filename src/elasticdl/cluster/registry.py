"""Whether an image is in its registry, asked without credentials.

    HEAD /v2/NAME/manifests/REFERENCE  --401-->  anonymous token  -->  HEAD again

The registry's answer is of this machine: a cluster may have credentials that are not here, and may
reach a registry that this machine does not. So only "it is there" and "it is not there" are sure.

The protocol is that of OCI (https://github.com/opencontainers/distribution-spec) and Docker
(https://distribution.github.io/distribution/spec/auth/token/). Callers: `check.py`, and `api.py`
where no container engine can be asked.
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

from elasticdl.cluster.findings import Finding, Verdict, missing
from elasticdl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMEOUT_S = 5.0
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 401, 403, 404
_DEFAULT_TAG = "latest"
# Names without a host mean this registry, which has its API at another name.
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
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class ImageReference:
    """Which image a text means, as Docker and Kubernetes read it.

    Attributes:
        registry: Host, and port if it has one.
        name: Its path there.
        reference: A digest, or a tag.
    """

    registry: str
    name: str
    reference: str

    @property
    def is_pinned(self) -> bool:
        """Whether it means one image for ever."""
        return ":" in self.reference


def parse_image(text: str) -> ImageReference | None:
    """Return which image a text means; None if it is no reference to an image.

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


def image(text: str) -> Finding:
    """Ask an image's registry whether it is there.

    It takes some seconds at most; of what goes wrong on the way the finding tells.
    """
    wanted = parse_image(text)
    if wanted is None:
        return missing(
            "image",
            f"{text!r} is no reference to an image",
            "Expected HOST/NAME:TAG or, better, HOST/NAME@sha256:DIGEST.",
        )
    try:
        return _judged(wanted, *_head(wanted))
    except (OSError, ValueError, HTTPException) as error:
        return Finding(
            "image",
            Verdict.UNKNOWN,
            f"{wanted.registry} does not answer this machine ({_reason(error)})",
            "The cluster may reach it nevertheless; if it does not, job show says so.",
        )


def check_is_there(text: str) -> None:
    """Raise if an image's registry says that it has no such image.

    Raises:
        UsageError: It was deleted, or never pushed.
    """
    found = image(text)
    if found.verdict is Verdict.MISSING:
        raise UsageError(f"{text}: {found.message}. {found.advice}")


def _judged(wanted: ImageReference, status: int, digest: str) -> Finding:
    if status in {_UNAUTHORIZED, _FORBIDDEN}:
        return Finding(
            "image",
            Verdict.UNKNOWN,
            f"cannot tell from here: {wanted.registry} wants credentials for {wanted.name}",
            "The pods need them too: --image_pull_secret=NAME.",
        )
    if status == _NOT_FOUND:
        return missing(
            "image",
            f"{wanted.registry} has no {wanted.name} {wanted.reference}",
            "Push it, or correct --image.",
        )
    if status >= 300:  # noqa: PLR2004 - neither there nor not
        return Finding(
            "image",
            Verdict.UNKNOWN,
            f"cannot tell from here: {wanted.registry} answers with status {status}",
        )
    if wanted.is_pinned:
        return Finding("image", Verdict.OK, f"{wanted.name} is in {wanted.registry}")
    better = f"--image={wanted.registry}/{wanted.name}@{digest}" if digest else "name its digest"
    return Finding(
        "image",
        Verdict.WARNING,
        f"{wanted.name} {wanted.reference} is in {wanted.registry}; a tag may mean another image "
        "tomorrow",
        f"Pin it: {better}",
    )


def _head(wanted: ImageReference) -> tuple[int, str]:
    """Return the status of the manifest, and the digest that the registry names."""
    host = _ITS_API if wanted.registry == _DEFAULT_REGISTRY else wanted.registry
    # As container engines do: what listens on this machine need have no certificate.
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
    """Return a token for what anyone may read; None if the registry gives none."""
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
    """Return status, headers by lower-case names, and body."""
    asked = urllib.request.Request(url, method=method)  # noqa: S310 - schemes are checked above
    for name, value in headers.items():
        # Not sent to where a registry redirects to.
        asked.add_unredirected_header(name, value)
    try:
        answer = urllib.request.urlopen(asked, timeout=_TIMEOUT_S)  # noqa: S310 - as above
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        named = {name.lower(): value for name, value in answer.headers.items()}
        return int(answer.status), named, answer.read(_MOST_BYTES)


def _reason(error: BaseException) -> str:
    said = str(getattr(error, "reason", "") or error)
    return said.splitlines()[0] if said else type(error).__name__
