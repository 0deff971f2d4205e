"""torchft's Gloo process group with a fixed listening address and detection of lost hosts.

Callers: `allreduce.py`.
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

# Connection timeout, as a multiple of the heartbeat timeout.
CONNECT_SILENCES = 4
# `PeerWatch` ends a sum that takes too long.
NEVER = timedelta(days=1)


class WatchedGloo(ProcessGroupGloo):  # type: ignore[misc]  # torchft has no types
    """Gloo process group with a fixed listening address and detection of lost hosts.

    By default Gloo resolves this machine's name to an address, which other machines may not reach,
    and it waits until the step's timeout for a host that disappears without closing its
    connections.

    Args:
        host: Address under which others reach this worker; unused if the environment variable
            GLOO_SOCKET_IFNAME names a network interface.
        silence_s: A host that has not answered for this many seconds is considered lost.

    Attributes:
        manager: Address of this worker's torchft server.
        peers: Addresses of the torchft servers of the other members of the quorum.
    """

    manager = ""
    peers: Collection[str] = ()

    def __init__(self, host: str, silence_s: float) -> None:
        # The members of a quorum connect at the same time, so connecting is fast.
        super().__init__(timeout=timedelta(seconds=CONNECT_SILENCES * silence_s))
        self._host, self._silence_s = host, silence_s
        self._known_sockets: Collection[int] = ()
        self._links: Mapping[int, int] = {}

    def configure(self, *args: Any, **named: Any) -> None:
        """Connect to the members of a new quorum; see torchft's `ProcessGroup.configure`."""
        self._known_sockets = set(_open_sockets())
        self._links, self.peers = {}, ()
        super().configure(*args, **named)

    def cut(self) -> None:
        """Shut down the connections to the other members, so that a waiting all-reduce fails."""
        now = _open_sockets()
        for inode, number in self._links.items():
            if now.get(inode) == number:
                with contextlib.suppress(OSError), _copy_of(number) as connection:
                    connection.shutdown(socket.SHUT_RDWR)

    def _create_pg(self, store: Any, rank: int, world_size: int) -> ProcessGroup:
        self._watch_links()  # to the store, where the others' addresses are, ...
        store.set(f"manager/{rank}", self.manager)
        before = set(_open_sockets())
        # As in torchft, except for the address; torch has only private names for this.
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
        """Set a short timeout for all connections to the members of the new quorum.

        Gloo has no option for this, so the timeout is set on all sockets that were opened while
        Gloo connected. An unrelated socket among them also fails sooner if its host is unreachable.
        """
        for inode, number in _open_sockets().items():
            if inode not in self._known_sockets:
                _give_up_after(number, self._silence_s)


def _open_sockets() -> dict[int, int]:
    """Return the open sockets of this process, as inode -> file descriptor."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            status = path.stat()
            if stat.S_ISSOCK(status.st_mode):
                found[status.st_ino] = int(path.name)
    return found


def _copy_of(number: int) -> socket.socket:
    # Closing the copy keeps the connection open. The owner may close the original at any time.
    return socket.socket(fileno=os.dup(number))


def _host_of(address: str) -> str:
    host = address.removeprefix("http://").rsplit(":", 1)[0]
    with contextlib.suppress(OSError):
        return socket.gethostbyname(host)
    return host


def _other_end(number: int) -> str:
    """Return the IP address of the remote host of a socket; empty if it is not connected to one.

    Args:
        number: File descriptor of the socket.
    """
    with contextlib.suppress(OSError), _copy_of(number) as connection:
        if connection.family in {socket.AF_INET, socket.AF_INET6}:
            return str(connection.getpeername()[0]).removeprefix("::ffff:")
    return ""


def _give_up_after(number: int, silence_s: float) -> None:
    """Make the operating system close a connection whose remote host stays silent for this long.

    The remote operating system answers regardless of its processes, so a peer that is busy
    computing is not affected.

    Args:
        number: File descriptor of the connection's socket.
        silence_s: The time in seconds.
    """
    with contextlib.suppress(OSError), _copy_of(number) as connection:
        if connection.family in {socket.AF_INET, socket.AF_INET6}:
            # Keepalive, because nothing is sent between two sums ...
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
            # ... and unacknowledged data, which would be resent for a quarter of an hour.
            timeout_ms = int(silence_s * 1000)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
