"""Restricts an aggregator's port to processes of its own user, if the federation has no keys.

This works only on Linux (`peer_user.py`); elsewhere all users of the machine are served.

Callers: `tls_proxy.py`, if there are no keys.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse

from elasticdl.peer_user import user_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

REFUSAL = "Without keys, only processes of the user who started the aggregator are served."


class SameUserOnly:
    """ASGI app that forwards requests of this user's processes, and answers others with 403.

    Args:
        app: Receives the forwarded requests.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward or refuse a request; the arguments are those of the ASGI specification."""
        if scope["type"] == "http" and user_of(scope["client"], scope["server"]) != os.getuid():
            await PlainTextResponse(REFUSAL, status_code=403)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def restricted(app: ASGIApp) -> ASGIApp:
    """Restrict an app to processes of this user on Linux; return it unchanged elsewhere."""
    return SameUserOnly(app) if sys.platform == "linux" else app
