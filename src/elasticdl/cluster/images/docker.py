"""Client of a container engine, Docker or podman, through the Docker API.

The engine's address is DOCKER_HOST, else that of Docker's current context, else the socket of
Docker or podman. Credentials for registries are those of `docker login`; they are sent to the
engine with a request and never stored in an image. The API reports errors inside a stream that
itself ends normally, so every message is checked.

Callers: `build.py`, `api.py`.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import docker
import requests
from docker.errors import APIError, DockerException

from elasticdl.cluster.images import build_errors
from elasticdl.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from elasticdl.cluster.images.build_errors import ImageRequest

Tell: TypeAlias = Callable[[str], None]

# API version for the request that determines the engine's version.
_ANY_VERSION = "1.41"
_ANSWERS_WITHIN_S = 10
_SILENT_FOR_S = 600
_REPORT_INTERVAL_S = 5.0
_STEP = re.compile(r"step (\d+)/(\d+) ?: (.+)", re.IGNORECASE)
_DIGEST = re.compile(r"digest: (sha256:[0-9a-f]{64})")
_LARGE = re.compile(r"\s*Downloading (\S+) \((\d{2,}(?:\.\d+)? MB|[\d.]+ GB)\)")
# Part of an instruction -> name of the step in progress messages.
_STEPS = (
    ("FROM", "base image"),
    ("dependencies.txt", "packages that ElasticDL needs"),
    (".whl", "ElasticDL"),
    ("requirements.txt", "requirements of the model zoo"),
    ("COPY zoo/", "model zoo"),
)


class DockerEngine:
    """Connection to a container engine, which builds, pushes and looks up images.

    Attributes:
        platform: Default platform of its images, such as `linux/amd64`.

    Raises:
        UsageError: Using the engine is not allowed.
        UnavailableError: No engine answers.
    """

    def __init__(self) -> None:
        settings = docker.utils.kwargs_from_env()
        settings.setdefault("base_url", _address())
        where = settings["base_url"]
        try:
            _check_connection(where)
            # Not the client's own version check, which leaks a connection on failure.
            with contextlib.closing(
                docker.APIClient(version=_ANY_VERSION, timeout=_ANSWERS_WITHIN_S, **settings)
            ) as asking:
                found = asking.version(api_version=False)
        except (DockerException, requests.RequestException, OSError) as error:
            raise _no_engine(where, error) from error
        self._client: Any = docker.APIClient(
            version=found["ApiVersion"], timeout=_SILENT_FOR_S, **settings
        )
        self.platform = f"{found['Os']}/{found['Arch']}"

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def build(
        self,
        context: IO[bytes],
        repository: str,
        *,
        arguments: Mapping[str, str],
        platform: str,
        network: str | None,
        wanted: ImageRequest,
        print_fn: Tell,
    ) -> str:
        """Build an image under a new tag; return the tag.

        Tags are never reused: when a tag moves to another image, a registry may delete the old
        image, although a trained model may refer to it.

        Args:
            context: The build context as a tar file, which contains the Dockerfile.
            repository: Repository in the image's name.
            arguments: Build arguments, for package indexes and proxies: name -> value.
            platform: Platform of the image.
            network: Network of the build commands. None: the engine's default.
            wanted: What the image is built from, for error messages.
            print_fn: Called with progress lines for the user.

        Raises:
            UsageError: A part of the image, such as the base image or a package, is missing or
                invalid.
            UnavailableError: A registry, the index or the engine cannot be reached.
        """
        steps = _Steps(print_fn)
        name = f"{repository}:building-{uuid.uuid4().hex}"
        with _engine_errors("build the image"):
            stream = self._client.build(
                fileobj=context,
                custom_context=True,
                tag=name,
                rm=True,
                forcerm=True,
                buildargs=dict(arguments),
                platform=platform,
                network_mode=network,
                decode=True,
            )
            for message in stream:
                if "error" in message:
                    raise build_errors.build_failed(
                        str(message["error"]), steps.output_lines, steps.number, wanted
                    )
                steps.add(str(message.get("stream", "")))
            tag = str(self._client.inspect_image(name)["Id"]).removeprefix("sha256:")[:16]
            self._client.tag(name, repository, tag)
            self._client.remove_image(name)
        return tag

    def push(self, repository: str, tag: str, print_fn: Tell) -> str:
        """Push an image to its registry; return its digest in the registry.

        Raises:
            UsageError: The registry rejects it.
            UnavailableError: The registry cannot be reached.
        """
        digest, layers, reported_s = None, _Layers(), time.monotonic()
        with _engine_errors(f"push to {repository}"):
            for message in self._client.push(repository, tag, stream=True, decode=True):
                if "error" in message:
                    raise build_errors.push_failed(str(message["error"]), repository)
                layers.add(message)
                if layers.num_bytes and time.monotonic() - reported_s > _REPORT_INTERVAL_S:
                    reported_s = time.monotonic()
                    print_fn(f"  pushed {layers}")
                found = (message.get("aux") or {}).get("Digest")
                said = _DIGEST.search(str(message.get("status", "")))
                digest = found or (said[1] if said else digest)
            digest = digest or self._local_digest(f"{repository}:{tag}", repository)
        if digest is None:
            raise UnavailableError(
                f"The image was pushed to {repository}:{tag}, but neither the engine nor the "
                "registry reported its digest. Run the command again."
            )
        # A rule of the registry may have deleted or replaced it immediately.
        self.check_is_there(f"{repository}@{digest}")
        return digest

    def check_is_there(self, name: str) -> None:
        """Raise `UsageError` if the registry reports that it does not have the image.

        An inconclusive answer is ignored: the engine may be unable to query the registry, and
        the cluster, which has to pull the image, may have other credentials or another network.

        Raises:
            UsageError: The image was deleted, or never pushed.
        """
        self._client.timeout = _ANSWERS_WITHIN_S
        try:
            self._client.inspect_distribution(name)
        except APIError as error:
            said = str(error.explanation or error)
            if build_errors.is_gone(said):
                raise build_errors.gone(name) from error
        except requests.RequestException:
            return
        finally:
            self._client.timeout = _SILENT_FOR_S

    def _local_digest(self, name: str, repository: str) -> str | None:
        for found in self._client.inspect_image(name).get("RepoDigests") or ():
            if found.startswith(f"{repository}@"):
                return str(found.partition("@")[2])
        return None


class _Steps:
    """Parser of a build's output, which prints a progress line when a step starts.

    Attributes:
        number: Number of the current step in the Dockerfile; 0 before the first one.
        output_lines: Output lines of the current step so far, for the error if the step fails.
    """

    def __init__(self, print_fn: Tell) -> None:
        self.number, self.output_lines = 0, list[str]()
        self._print_fn, self._name, self._line = print_fn, "", ""

    def add(self, text: str) -> None:
        *whole, self._line = (self._line + text).split("\n")
        for line in whole:
            self._add_line(line)

    def _add_line(self, line: str) -> None:
        step = _STEP.match(line.strip())
        if step:
            self.number, self.output_lines = int(step[1]), []
            name = next((name for mark, name in _STEPS if mark in step[3]), "")
            # Several instructions can belong to one step; only the first one is reported.
            if name and name != self._name:
                self._name = name
                self._print_fn(f"  {name}")
            return
        self.output_lines.append(line)
        large = _LARGE.match(line)
        if large:
            self._print_fn(f"    downloads {large[1].rpartition('/')[2]} ({large[2]})")


class _Layers:
    """Progress of a push, summed up from the engine's messages about the image's layers."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[int, int]] = {}

    def add(self, message: Mapping[str, Any]) -> None:
        progress, layer = message.get("progressDetail") or {}, message.get("id")
        if layer and progress.get("total"):
            self._layers[layer] = (int(progress.get("current", 0)), int(progress["total"]))

    @property
    def num_bytes(self) -> int:
        """Size of all layers to push; 0 if the engine does not report it."""
        return sum(total for _, total in self._layers.values())

    def __str__(self) -> str:
        done = sum(min(current, total) for current, total in self._layers.values())
        return f"{done / 1e6:,.0f} of {self.num_bytes / 1e6:,.0f} MB"


def _address() -> str:
    """Find the container engine's address, for when DOCKER_HOST is not set."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    sockets = ["/var/run/docker.sock", f"{runtime}/podman/podman.sock", "/run/podman/podman.sock"]
    try:
        context = docker.ContextAPI.get_current_context()
    except (DockerException, OSError, ValueError):
        context = None
    if context is not None and context.name != "default" and context.Host:
        return str(context.Host)
    chosen = next((each for each in sockets if Path(each).exists()), sockets[0])
    return f"unix://{chosen}"


def _check_connection(where: str) -> None:
    """Try to connect to an engine whose address is a local socket; other addresses are ignored.

    Raises:
        OSError: Nothing listens on the socket, or this user may not connect to it.
    """
    if where.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as knocking:
            knocking.settimeout(_ANSWERS_WITHIN_S)
            knocking.connect(where.removeprefix("unix://"))


def _no_engine(where: str, error: Exception) -> UsageError | UnavailableError:
    if isinstance(error, PermissionError):
        return UsageError(
            f"You are not allowed to use the container engine at {where}. Join its group (usually "
            "docker) and log in again, or use your own podman socket: "
            "DOCKER_HOST=unix://$XDG_RUNTIME_DIR/podman/podman.sock."
        )
    return UnavailableError(
        f"No container engine answers at {where}: {error}. Start Docker, or podman's service "
        "(podman system service --time=0 unix:///tmp/podman.sock), and name its socket in "
        "DOCKER_HOST. To use an existing image instead, set --image."
    )


@contextlib.contextmanager
def _engine_errors(what: str) -> Iterator[None]:
    try:
        yield
    except APIError as error:
        raise UsageError(
            f"The container engine cannot {what}: {error.explanation or error}"
        ) from error
    except (DockerException, requests.RequestException) as error:
        raise UnavailableError(
            f"The connection to the container engine was lost (operation: {what}): {error}"
        ) from error
