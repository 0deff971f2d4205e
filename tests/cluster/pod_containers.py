"""Containers for the pods of the stand-in operator: the kubelet and container runtime of one node.

    pod of the head     `ray start --head` in the pod's image, pulled by its digest
    pod of a worker     `ray start --address=HEAD`, once the head's control store answers
    entrypoint          a command in the head's container, as Ray's job agent runs it there

As in a cluster, a container runs as the user of the manifest, on a read-only file system, with the
manifest's environment, temporary folders and limit of memory, and with the token that KubeRay gives
to all pods of a RayCluster. The pod of the submitter runs nothing: it is who waits.

What is not as in a cluster: nobody limits processors, and Python packages are mounted, because an
image with all of them takes minutes to make.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import sysconfig
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.cluster.containers import PACKAGES
from tests.cluster.pod_states import PodState, exited, oom_killed, running_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.cluster.api_server.resources import Object
    from tests.cluster.api_server.store import PodLog

_RAY_PORT = 6379
_SHARED_MEMORY = "256m"
_LAST_LINES = 20
# CLONE_NEWNET of sched.h.
_NEW_NETWORK = 0x40000000
# The operator asks twenty times a second.
_LOOKS_EVERY_S = 0.5


class PodContainers:
    """Runs pods in an engine, on a network that has no way out.

    Attributes:
        gateway: Address of this machine in that network.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        # Pod -> its container. Pods of one name come after one another.
        self._containers: dict[str, Any] = {}
        # RayCluster -> the token of its processes.
        self._tokens: dict[str, str] = {}
        self._ending_since: dict[str, float] = {}
        self._looked_s: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._network = self._client.networks.create("pods", driver="bridge", internal=True)
        self._network.reload()
        self.gateway: str = self._network.attrs["IPAM"]["Config"][0]["Gateway"]
        return self

    def __exit__(self, *_: object) -> None:
        for container in self._containers.values():
            container.remove(force=True)
        self._network.remove()

    def container(self, pod: str) -> Any:
        """Return the engine's object for a pod."""
        return self._containers[pod]

    def connect(self, pod: str, port: int) -> socket.socket:
        """Return a connection to a port of the loopback interface of a pod's container.

        Raises:
            OSError: Nothing listens there.
        """
        container = self._containers[pod]
        container.reload()
        namespace = Path(f"/proc/{container.attrs['State']['Pid']}/ns/net")
        # A thread of its own, because a thread that has entered a network stays in it.
        with ThreadPoolExecutor(1) as entering:
            return entering.submit(_connect_within, namespace, port).result()

    def start(self, pod: Object, env: Mapping[str, str]) -> PodState | None:
        """Start a pod's container; returns None if it has to wait for the head."""
        name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
        cluster, role = labels["ray.io/cluster"], labels["ray.io/node-type"]
        if role == "head":
            # The dashboard takes seconds, and nothing here asks it.
            more = f"--head --port={_RAY_PORT} --include-dashboard=false"
        elif (head := self._address_of_head(cluster, name)) is not None:
            more = f"--address={head}:{_RAY_PORT}"
        else:
            return None
        container = self._run(pod, f"{more} --object-store-memory=100000000", {
            **env, "PYTHONPATH": PACKAGES, "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self._tokens.setdefault(cluster, secrets.token_hex(32)),
        })  # fmt: skip
        return running_at(_address(container))

    def ended(self, pod: str) -> PodState | None:
        """Return how a pod's container has ended; None if it ran when it was last looked at."""
        container = self._containers.get(pod)
        if container is None or not self._is_time_for(pod):
            return None
        container.reload()
        state = container.attrs["State"]
        if state["Running"]:
            return None
        return oom_killed() if state["OOMKilled"] else exited(state["ExitCode"])

    def kill(self, pod: str) -> None:
        """Kill a pod's container, as when its node is lost."""
        with suppress(KeyError):
            self._containers[pod].kill("SIGKILL")

    def remove(self, pod: str, grace_s: int) -> bool:
        """Ask a pod's container to end, and kill it after the grace period.

        Returns:
            Whether it is gone.
        """
        if pod not in self._containers:
            return True
        container = self._containers[pod]
        container.reload()
        if container.attrs["State"]["Running"]:
            since = self._ending_since.get(pod)
            if since is None:
                self._ending_since[pod] = time.monotonic()
                container.kill("SIGTERM")
            elif time.monotonic() > since + grace_s:
                container.kill("SIGKILL")
            return False
        container.remove(force=True)
        del self._containers[pod]
        return True

    def run(self, command: str, head: str, submitter: str, log: PodLog) -> ContainerEntrypoint:
        """Run an entrypoint in the head's container."""
        return ContainerEntrypoint(self._containers[head], command, head, submitter, log)

    def _run(self, pod: Object, more: str, env: Mapping[str, str]) -> Any:
        name, spec = pod["metadata"]["name"], pod["spec"]
        [container, *_] = spec["containers"]
        user = spec["securityContext"]
        made = self._client.containers.run(
            self._pulled(container["image"]),
            [*container["command"], f"{container['args'][0]} {more}"],
            name=name,
            hostname=name,
            user=f"{user['runAsUser']}:{user['runAsGroup']}",
            environment=dict(env),
            read_only=container["securityContext"]["readOnlyRootFilesystem"],
            cap_drop=container["securityContext"]["capabilities"]["drop"],
            security_opt=["no-new-privileges"],
            mem_limit=container["resources"]["limits"]["memory"].removesuffix("i").lower(),
            tmpfs={"/tmp": ""},
            shm_size=_SHARED_MEMORY,
            volumes={sysconfig.get_path("purelib"): {"bind": PACKAGES, "mode": "ro"}},
            network=self._network.name,
            detach=True,
        )  # fmt: skip
        self._containers[name] = made
        return made

    def _pulled(self, image: str) -> str:
        """Have an image here, from its registry; imagePullPolicy IfNotPresent."""
        import docker

        try:
            self._client.images.get(image)
        except docker.errors.ImageNotFound:
            repository, _, digest = image.partition("@")
            self._client.images.pull(repository, digest)
        return image

    def _is_time_for(self, what: str) -> bool:
        """Whether it was not looked at a moment ago."""
        now_s = time.monotonic()
        if now_s - self._looked_s.get(what, -_LOOKS_EVERY_S) < _LOOKS_EVERY_S:
            return False
        self._looked_s[what] = now_s
        return True

    def _address_of_head(self, cluster: str, asks: str) -> str | None:
        """Return where the control store of a RayCluster answers; None before it does."""
        if not self._is_time_for(asks):
            return None
        for name, container in self._containers.items():
            if name.startswith(f"{cluster}-head-"):
                with suppress(OSError):
                    address = _address(container)
                    socket.create_connection((address, _RAY_PORT), 0.2).close()
                    return address
        return None


class ContainerEntrypoint:
    """A command that runs in a container: an `Entrypoint`."""

    def __init__(
        self, container: Any, command: str, head: str, submitter: str, log: PodLog
    ) -> None:
        self.head, self.submitter = head, submitter
        self._container, self._log = container, log
        self._api = container.client.api
        self._id = self._api.exec_create(
            container.id, ["/bin/bash", "-c", command], user=container.attrs["Config"]["User"]
        )["Id"]
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def is_over(self) -> bool:
        return not self._reader.is_alive()

    @property
    def exit_code(self) -> int:
        code = self._api.exec_inspect(self._id)["ExitCode"]
        # The container went away, and the command with it.
        return 137 if code is None else int(code)

    def last_lines(self) -> str:
        return "\n".join(line for _, line in self._log.lines[-_LAST_LINES:])

    def kill(self) -> None:
        """It ends with its container."""
        with suppress(Exception):
            self._container.kill("SIGKILL")
        self._reader.join()

    def end(self, grace_s: float) -> None:
        """Nothing: a kubelet asks the first process of a container only."""

    def _read(self) -> None:
        from docker.utils.socket import frames_iter

        # Not as a stream, which leaves its connection open.
        connection, said = self._api.exec_start(self._id, socket=True), b""
        with connection, closing(connection._sock), closing(connection._response):
            for _, more in frames_iter(connection, tty=False):
                *lines, said = (said + more).split(b"\n")
                for line in lines:
                    self._log.append(line.decode(errors="replace"))
        if said:
            self._log.append(said.decode(errors="replace"))


def _address(container: Any) -> str:
    container.reload()
    [network] = container.attrs["NetworkSettings"]["Networks"].values()
    address: str = network["IPAddress"]
    return address


def _connect_within(namespace: Path, port: int) -> socket.socket:
    """Return a connection to a port in a network namespace, which this thread enters."""
    library = ctypes.CDLL(None, use_errno=True)
    with namespace.open("rb") as file:
        if library.setns(file.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return socket.create_connection(("127.0.0.1", port), timeout=5)
