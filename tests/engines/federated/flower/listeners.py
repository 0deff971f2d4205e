"""What a tree of processes listens on, as the kernel lists it, and a caller without credentials.

Callers: `test_listeners.py`, `test_plain_text.py`.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
import typing
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

# Of /proc/net/tcp: listening; of udp: bound, and not connected.
_LISTENING = {"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"}
# Of /proc/net/unix: `__SO_ACCEPTCON`.
_ACCEPTS = 0x10000
_OF_A_PARTY = ["control.sock", "party", "party.m", "party.r"]
SOCKETS_OF_COMMANDS = sorted(
    ["aggregator", "control.sock", "superlink", *_OF_A_PARTY, *_OF_A_PARTY]
)
"""Names of the sockets of an aggregator and two parties, each from a command."""


@dataclass(frozen=True)
class Listener:
    """Something that a process listens on.

    Attributes:
        command: Of the process.
        family: tcp, tcp6, udp, udp6 or unix.
        at: ADDRESS:PORT in hexadecimal, as the kernel writes them, or a path.
    """

    command: str
    family: str
    at: str

    @property
    def port(self):
        return int(self.at.rpartition(":")[2], 16)

    @property
    def is_closed_to_others(self):
        """Whether it is a unix socket that lies in a folder only this user can enter."""
        # An abstract socket (@...) has no folder: everyone can connect.
        if self.family != "unix" or not self.at.startswith("/"):
            return False
        try:
            folder = Path(self.at).parent.stat()
        except FileNotFoundError:
            # It was removed after the kernel listed it.
            return True
        return folder.st_uid == os.getuid() and stat.S_IMODE(folder.st_mode) == 0o700


def listeners(root):
    """Return what a process and those below it listen on."""
    owners = {}
    for process in tree(root):
        with contextlib.suppress(OSError, psutil.Error):
            command = " ".join(process.cmdline())
            for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if found := re.fullmatch(r"socket:\[(\d+)\]", str(descriptor.readlink())):
                        owners[found[1]] = command
    return [Listener(owners[inode], family, at) for family, at, inode in _open() if inode in owners]


def seen_until_the_end(first, *others):
    """Return what some processes were seen to listen on until the first of them ended.

    Returns:
        Ports, sockets that others can reach, and paths of those that they cannot.
    """
    ports, open_sockets, closed_sockets = set(), set(), set()
    while first.poll() is None:
        for process in (first, *others):
            for one in listeners(process.pid):
                if one.family != "unix":
                    ports.add(one.port)
                elif not one.is_closed_to_others:
                    open_sockets.add(one)
                else:
                    closed_sockets.add(one.at)
        time.sleep(0.1)
    return ports, open_sockets, closed_sockets


def tree(root):
    """Return a process and those below it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(root)
        return [process, *process.children(recursive=True)]
    return []


def words(root):
    """Return the words of the command lines of a process and those below it."""
    found = set()
    for process in tree(root):
        # Flower leaves processes that have ended and that no one waits for.
        with contextlib.suppress(psutil.Error):
            found.update(process.cmdline())
    return found


def _open():
    for family, state in _LISTENING.items():
        for line in Path("/proc/net", family).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == state:
                yield family, fields[1], fields[9]
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if int(fields[3], 16) & _ACCEPTS:
            yield "unix", fields[7] if len(fields) > 7 else "", fields[6]


def served_to_anyone(port):
    """Return the calls of Flower's interfaces that are answered without any credential.

    Args:
        port: Of this machine; it may speak TLS or not.

    Returns:
        Their names; each was called with an empty request.
    """
    try:
        httpx.get(f"https://127.0.0.1:{port}/health", verify=False, timeout=20)
        scheme = "https"
    except httpx.HTTPError:
        scheme = "http"
    return _served(f"{scheme}://127.0.0.1:{port}")


def _served(url):
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supernode.fleet_http_client import FleetHttpClient

    served = []
    for kind in (ControlHttpClient, RuntimeHttpClient, FleetHttpClient):
        version = RuntimeVersionHttpInterceptor(component_name="a stranger")
        # What it connects to is not its concern: it trusts every certificate.
        with kind(url, verify=False, interceptors=[version], timeout=20) as client:
            for name, method in vars(kind).items():
                request = typing.get_type_hints(method).get("request") if callable(method) else None
                if request is not None and _answers(getattr(client, name), request()):
                    served.append(name)
    return served


def _answers(call, request):
    """Return whether a call is understood: a mistake in an empty request counts as well."""
    try:
        answer = call(request)
        if hasattr(answer, "__next__"):
            next(answer, None)
    except httpx.HTTPStatusError as error:
        return error.response.status_code not in {401, 403, 404}
    except httpx.HTTPError:
        return False
    return True
