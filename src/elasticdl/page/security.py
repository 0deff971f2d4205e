"""Access control of the page: a token, a check of the `Host` header, a content security policy.

* A request carries the token in its URL or in a cookie set by the first response.
* Its `Host` must be an IP address, `localhost` or this machine's name. This prevents DNS rebinding,
  where a web site makes its own name resolve to 127.0.0.1.
* The page runs only scripts from this server and cannot be shown in a frame.

Pure. Callers: `web_app.py`.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Mapping

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A report contains its own styles and runs no scripts.
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def new_token() -> str:
    """Return a random token that cannot be guessed."""
    return secrets.token_urlsafe(24)


def is_token(given: str | None, token: str) -> bool:
    """Return whether a string is the token; takes constant time, to resist timing attacks."""
    return given is not None and secrets.compare_digest(
        given.encode(errors="replace"), token.encode()
    )


def is_own_host(header: str, allowed: str = "") -> bool:
    """Return whether a `Host` header is an IP address (any) or a name of this machine.

    Args:
        header: Value of the header, with or without a port.
        allowed: An additional allowed name, such as the host of `--listen`.

    Example:
        >>> [is_own_host(h) for h in ("127.0.0.1:80", "[::1]:80", "localhost", "evil.example")]
        [True, True, True, False]
    """
    host = header.rpartition(":")[0] if not header.endswith("]") and ":" in header else header
    host = host.strip("[]").lower()
    names = {"localhost", socket.gethostname().lower(), allowed.lower()} - {""}
    if host in names:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    # An IP address involves no name resolution.
    return True


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
