"""Identifies the user whose process is at the other end of a local TCP connection.

Every user of a machine can connect to its loopback address. The kernel lists which user opened
each connection (`/proc/net/tcp`), so a server can serve a single user without a shared secret.

Only on Linux.
"""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path

_LISTS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOCAL, _REMOTE, _USER = 1, 2, 7


def user_of(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the ID of the user whose process opened a TCP connection within this machine.

    Args:
        client: Address and port of the end that connected.
        server: Address and port of the other end.

    Returns:
        The ID of the user; None if there is no such connection.
    """
    ends = {(_kernels(*client, mapped), _kernels(*server, mapped)) for mapped in (False, True)}
    for file in _LISTS:
        # A machine may have no IPv6.
        lines = file.read_text().splitlines()[1:] if file.exists() else []
        for line in lines:
            fields = line.split()
            if (fields[_LOCAL], fields[_REMOTE]) in ends:
                return int(fields[_USER])
    return None


def _kernels(host: str, port: int, mapped: bool) -> str:
    """Format an address and a port as the kernel does in `/proc/net/tcp` and `tcp6`.

    Args:
        host: IP address.
        port: The port.
        mapped: Whether to format an IPv4 address as an IPv6 address (`::ffff:`).
    """
    address = ipaddress.ip_address(host)
    if mapped and address.version == 4:  # noqa: PLR2004 - of the Internet Protocol
        address = ipaddress.ip_address(f"::ffff:{host}")
    packed = address.packed
    words = (packed[start : start + 4] for start in range(0, len(packed), 4))
    written = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{written}:{port:04X}"
