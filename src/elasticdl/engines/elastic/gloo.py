"""torchft's Gloo, for members that are looked for at one address and may vanish without a word.

Callers: `quorum.py`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed import ProcessGroup
from torch.distributed import ProcessGroupGloo as Gloo
from torchft import ProcessGroupGloo

# So many times the silence that is taken for death the members of a quorum may take to connect.
CONNECT_SILENCES = 4
# A sum is ended by `PeerWatch`.
NEVER = timedelta(days=1)


class WatchedGloo(ProcessGroupGloo):  # type: ignore[misc]  # torchft has no types
    """Gloo that listens where the others look for this worker, and notices that a link is cut.

    By itself it takes the address of this machine's name, which may be one that only this machine
    knows; and it waits for a host that has gone without a word until the step's timeout.

    Args:
        host: Address under which others reach this worker.
        silence_s: A host that has answered nothing for so long is taken for lost.

    Attributes:
        manager: Address of this worker's torchft server.
        peers: Those of the other members of the quorum.
    """

    manager = ""
    peers: Collection[str] = ()

    def __init__(self, host: str, silence_s: float) -> None:
        # A quorum's members are waiting for each other when they connect: that is soon done.
        super().__init__(timeout=timedelta(seconds=CONNECT_SILENCES * silence_s))
        self._host, self._silence_s = host, silence_s
        self._known_sockets: Collection[int] = ()
        self._links: Mapping[int, int] = {}

    def configure(self, *args: Any, **named: Any) -> None:
        """Connect with the members of a new quorum."""
        self._known_sockets = set(_open_sockets())
        self._links, self.peers = {}, ()
        super().configure(*args, **named)

    def cut(self) -> None:
        """End the connections to the other members, so that a sum that waits for them fails."""
        now = _open_sockets()
        for inode, number in self._links.items():
            if now.get(inode) == number:
                with contextlib.suppress(OSError), _copy_of(number) as connection:
                    connection.shutdown(socket.SHUT_RDWR)

    def _create_pg(self, store: Any, rank: int, world_size: int) -> ProcessGroup:
        self._watch_links()  # to the store, where the others' addresses are, ...
        store.set(f"manager/{rank}", self.manager)
        before = set(_open_sockets())
        # As torchft makes it, but for the address; torch has only private names for all that.
        options = cast("Any", Gloo)._Options()  # noqa: SLF001
        options._timeout = self._timeout  # noqa: SLF001
        interface = os.environ.get("GLOO_SOCKET_IFNAME")
        device = {"interface": interface} if interface else {"hostname": self._host}
        options._devices = [Gloo.create_device(**device)]  # noqa: SLF001
        backend = Gloo(store, rank, world_size, options)
        backend._set_default_timeout(NEVER)  # noqa: SLF001
        backend._set_sequence_number_for_group()  # noqa: SLF001
        kind = ProcessGroup.BackendType.GLOO
        group = ProcessGroup(store, rank, world_size)
        group._set_default_backend(kind)  # noqa: SLF001
        group._register_backend(torch.device("cpu"), kind, backend)  # noqa: SLF001
        self._watch_links()  # ... and to them.
        others = [f"manager/{other}" for other in range(world_size) if other != rank]
        self.peers = [bytes(each).decode() for each in store.multi_get(others)] if others else []
        hosts = {_host_of(peer) for peer in self.peers}
        self._links = {
            inode: number
            for inode, number in _open_sockets().items()
            if inode not in before and _other_end(number) in hosts
        }
        return group

    def _watch_links(self) -> None:
        """Let the system end those connections early that were made since `configure` began.

        Gloo has no option for it. Should a stranger's be among them, that one is given up sooner
        as well, when its host is out of reach.
        """
        for inode, number in _open_sockets().items():
            if inode not in self._known_sockets:
                _give_up_after(number, self._silence_s)


def _open_sockets() -> dict[int, int]:
    """Return the sockets of this process: what tells one from another -> its number."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            status = path.stat()
            if stat.S_ISSOCK(status.st_mode):
                found[status.st_ino] = int(path.name)
    return found


def _copy_of(number: int) -> socket.socket:
    # Closing it leaves the connection alone. Its owner may close that at any time.
    return socket.socket(fileno=os.dup(number))


def _host_of(address: str) -> str:
    host = address.removeprefix("http://").rsplit(":", 1)[0]
    with contextlib.suppress(OSError):
        return socket.gethostbyname(host)
    return host


def _other_end(number: int) -> str:
    """Return the address of the host that a connection leads to; empty if it is no connection."""
    with contextlib.suppress(OSError), _copy_of(number) as connection:
        if connection.family in {socket.AF_INET, socket.AF_INET6}:
            return str(connection.getpeername()[0]).removeprefix("::ffff:")
    return ""


def _give_up_after(number: int, silence_s: float) -> None:
    """Let the system end a connection when the other host does not answer for so long.

    The other host's system answers, whatever its processes do: who only computes is not given up.
    """
    with contextlib.suppress(OSError), _copy_of(number) as connection:
        if connection.family in {socket.AF_INET, socket.AF_INET6}:
            # Between two sums nothing is sent, so the system has to ask by itself ...
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
            # ... and what was sent it would repeat for a quarter of an hour.
            timeout_ms = int(silence_s * 1000)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
