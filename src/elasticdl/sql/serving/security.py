"""Access rules of the server: allowed listen addresses and allowed callers.

Without TLS, or with neither a token nor client certificates, the server listens on loopback only.
On Linux, a server without token and client certificates serves only processes of the user that
started it.

Used by `service.py`.
"""

from __future__ import annotations

import ipaddress
import os
import sys
import urllib.parse
from dataclasses import dataclass

import grpc

from elasticdl.errors import UnavailableError, UsageError
from elasticdl.peer_user import user_of


@dataclass(frozen=True)
class Security:
    """Access rules of the server: which clients it accepts.

    Attributes:
        token: The token that clients must send. None: require no token. A server on Linux without
            token and client certificates serves only the user that started it.
        certificate: The server's certificate chain, PEM. None: serve without TLS.
        key: Private key of `certificate`, PEM.
        authorities: Certificates of the authorities that sign client certificates, PEM. None:
            require no client certificate.
        allow_any_database: Whether clients may choose a database.
    """

    token: str | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    authorities: bytes | None = None
    allow_any_database: bool = False


def is_forbidden_user(peer: str, host: str, port: int, security: Security) -> bool:
    """Return whether to reject a call because it comes from another user of this machine.

    Applies only on Linux, to a server without a token and without client certificates.

    Args:
        peer: gRPC's name of the other end, such as `ipv4:127.0.0.1:40000`.
        host: The server's host.
        port: The server's port.
        security: The access rules.
    """
    if security.token or security.authorities or sys.platform != "linux":
        return False
    family, _, there = urllib.parse.unquote(peer).partition(":")
    address, _, number = there.rpartition(":")
    here = host.strip("[]")
    if here == "localhost":
        here = "127.0.0.1" if family == "ipv4" else "::1"
    return user_of((address.strip("[]"), int(number)), (here, port)) != os.getuid()


def bind(server: grpc.Server, address: str, security: Security) -> int:
    """Make a gRPC server listen on an address; return its port.

    Raises:
        UnavailableError: The address is in use, or the certificate is unusable.
    """
    try:
        if security.certificate is None or security.key is None:
            return int(server.add_insecure_port(address))
        credentials = grpc.ssl_server_credentials(
            [(security.key, security.certificate)],
            root_certificates=security.authorities,
            require_client_auth=security.authorities is not None,
        )
        return int(server.add_secure_port(address, credentials))
    except RuntimeError as error:
        raise UnavailableError(
            f"Cannot listen on {address}: {error}. Check that the port is free and that the files "
            "of --tls_cert, --tls_key and --tls_ca are PEM."
        ) from error


def check_address(address: str, security: Security) -> None:
    """Check that a server may listen on an address.

    Raises:
        UsageError: The address is malformed; or other machines can reach it, and TLS or client
            authentication is missing.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not host:
        raise UsageError(f"--listen={address}: expected HOST:PORT, such as 127.0.0.1:50051.")
    if is_loopback(host):
        return
    for missing, option in (
        (security.certificate is None, "--tls_cert and --tls_key"),
        (security.token is None and security.authorities is None, "--token_file or --tls_ca"),
    ):
        if missing:
            raise UsageError(
                f"--listen={address} can be reached from other machines, which requires {option}. "
                "Without them the server listens on 127.0.0.1 only."
            )


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
