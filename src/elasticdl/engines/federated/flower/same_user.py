"""Serves processes of this user only: for a port of this machine that asks for no key.

Every user of a machine can connect to its loopback address. The kernel lists which user has opened
each connection (`/proc/net/tcp`), so none needs a secret.

Only on Linux; elsewhere everyone on the machine is served.

Callers: `front.py`, where there are no keys.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

REFUSAL = "Without keys, only processes of the user who started the aggregator are served."
_LISTS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOCAL, _REMOTE, _USER = 1, 2, 7


class SameUserOnly:
    """An ASGI app that passes on requests of this user's processes, and answers others with 403.

    Args:
        app: What it passes them on to.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http" and user_of(scope["client"], scope["server"]) != os.getuid():
            await PlainTextResponse(REFUSAL, status_code=403)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def restricted(app: ASGIApp) -> ASGIApp:
    """Return an app that serves this user only, where the kernel tells users apart."""
    return SameUserOnly(app) if sys.platform == "linux" else app


def user_of(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return whose process has opened a TCP connection within this machine.

    Args:
        client: Address and port of the end that connected.
        server: Those of the other end.

    Returns:
        The number of the user; None if there is no such connection.
    """
    ends = {(_kernels(*client, mapped), _kernels(*server, mapped)) for mapped in (False, True)}
    for file in _LISTS:
        # A machine may do without IPv6.
        lines = file.read_text().splitlines()[1:] if file.exists() else []
        for line in lines:
            fields = line.split()
            if (fields[_LOCAL], fields[_REMOTE]) in ends:
                return int(fields[_USER])
    return None


def _kernels(host: str, port: int, mapped: bool) -> str:
    """Return an address and a port as the kernel writes them."""
    address = ipaddress.ip_address(host)
    if mapped and address.version == 4:  # noqa: PLR2004 - of the Internet Protocol
        address = ipaddress.ip_address(f"::ffff:{host}")
    packed = address.packed
    words = (packed[start : start + 4] for start in range(0, len(packed), 4))
    written = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{written}:{port:04X}"
