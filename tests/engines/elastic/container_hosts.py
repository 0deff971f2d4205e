"""Several machines on this one: containers on a network of their own, each with a Ray node.

    h0 --- network --- h1        an engine's bridge, with no way out of it
              |
              +------- h2

As pods of a cluster: Ray is the first process of each, asks for a token, and a host that is lost is
not repaired but replaced by another one. A host can be killed, disconnected, and have a limit of
memory that the kernel enforces.

The image has this machine's Python; packages, repository and the folder of the test are mounted at
the places that they have here.

Callers: `test_container_hosts.py`.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from tests.cluster.containers import BASE
from tests.engines.elastic.hosts import RAY_ENVIRONMENT, RAY_PORT

_REPOSITORY = Path(__file__).parents[3]
_STARTED_WITHIN_S = 90
_SHARED_MEMORY = "256m"


class ContainerHost:
    """One machine: see the module.

    Attributes:
        name: Its host name.
        address: Its address in the network of the hosts.
    """

    def __init__(self, container) -> None:
        self._container = container
        container.reload()
        [(self._network, here)] = container.attrs["NetworkSettings"]["Networks"].items()
        self.name, self.address = container.name, here["IPAddress"]

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs these on the host."""
        # Of another process, where Ray had to be started again.
        self._container.reload()
        return ["nsenter", "-a", "-t", str(self._container.attrs["State"]["Pid"]), *arguments]

    def kill(self) -> None:
        """Kill all that runs there."""
        self._container.kill("SIGKILL")

    def stop(self) -> None:
        """End it, if it runs."""
        self._container.stop(timeout=0)

    def cut(self) -> None:
        """Take it off the network."""
        self._container.client.networks.get(self._network).disconnect(self._container)

    def is_running(self) -> bool:
        """Return whether its first process is there."""
        self._container.reload()
        running: bool = self._container.attrs["State"]["Running"]
        return running

    def num_killed_for_memory(self) -> int:
        """Return how many of its processes the kernel has killed for the limit of memory."""
        for name in ("memory.events", "memory/memory.oom_control"):
            counted = subprocess.run(
                self.command("/bin/cat", f"/sys/fs/cgroup/{name}"),
                check=False, capture_output=True, text=True,
            ).stdout  # fmt: skip
            if counted:
                words = dict(line.split() for line in counted.splitlines())
                return int(words["oom_kill"])
        raise AssertionError(f"{self.name} has no cgroup of its own")

    def log(self) -> str:
        """Return what its Ray printed."""
        text: str = self._container.logs().decode(errors="replace")
        return text


class HostNetwork:
    """Hosts h0, h1 and so on in the order of their start; h0 is the head, and has no worker.

    Args:
        client: Of an engine that has the base image.
        folder: Which all of them see, and may write to.
    """

    def __init__(self, client, folder: Path) -> None:
        self._client, self.folder = client, folder
        self._containers: list = []
        self.environment = {
            **RAY_ENVIRONMENT,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "HOME": "/tmp",
            "PYTHONPATH": f"{_REPOSITORY / 'src'}:{sysconfig.get_path('purelib')}",
        }

    def __enter__(self):
        self._network = self._client.networks.create("hosts", driver="bridge", internal=True)
        try:
            self.head = self._start("--head", f"--port={RAY_PORT}", "--include-dashboard=false",
                                    "--num-cpus=0")  # fmt: skip
            self._wait_for_head()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for container in reversed(self._containers):
            container.remove(force=True)
        self._network.remove()

    def start(self, memory: str | None = None, **environment: str) -> ContainerHost:
        """Start a host with room for one worker; its Ray joins the head's some seconds later.

        Args:
            memory: All that its processes may have, such as `1g`.
            environment: More variables.
        """
        return self._start(
            f"--address={self.head.address}:{RAY_PORT}", "--num-cpus=1", memory=memory,
            environment=environment,
        )  # fmt: skip

    def _start(self, *options: str, memory=None, environment=None) -> ContainerHost:
        name = f"h{len(self._containers)}"
        mounts = {
            sys.prefix: "ro",
            str(_REPOSITORY): "ro",
            # In the order of their length: it may lie in the repository.
            str(self.folder): "rw",
        }
        container = self._client.containers.run(
            BASE,
            [str(Path(sys.executable).resolve()), "-m", "ray.scripts.scripts", "start", "--block",
             "--object-store-memory=100000000", *options],
            name=name,
            hostname=name,
            network=self._network.name,
            environment={**self.environment, **(environment or {})},
            volumes={place: {"bind": place, "mode": mode} for place, mode in mounts.items()},
            tmpfs={"/tmp": ""},
            shm_size=_SHARED_MEMORY,
            # As a kubelet does where Ray does not start, on a machine that is too busy; a host that
            # was killed stays so.
            restart_policy={"Name": "on-failure", "MaximumRetryCount": 3},
            mem_limit=memory,
            memswap_limit=memory,
            detach=True,
        )  # fmt: skip
        self._containers.append(container)
        return ContainerHost(container)

    def _wait_for_head(self) -> None:
        until = time.monotonic() + _STARTED_WITHIN_S
        while True:
            try:
                socket.create_connection((self.head.address, RAY_PORT), 1).close()
            except OSError:
                assert self.head.is_running(), self.head.log()
                assert time.monotonic() < until, self.head.log()
                time.sleep(0.1)
            else:
                return
