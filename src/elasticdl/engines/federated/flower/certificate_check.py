"""Checks that an aggregator can be reached, and that its TLS certificate is the expected one.

    party  --GET /health, over TLS if there are keys-->  tls_proxy.py of the aggregator

Flower's supernode verifies the certificate too, but it retries forever and reports errors in its
libraries' terms. This check explains what is wrong.

Callers: `supernode.py`, before Flower's process starts and when it cannot connect.
"""

from __future__ import annotations

import http
import http.client
import socket
import ssl
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from elasticdl.errors import TrainingError

if TYPE_CHECKING:
    from pathlib import Path

ANOTHER_USER = (
    "The aggregator was started by another user of this machine, without keys, so it serves only "
    "parties of that user. Create keys for both sides with `elasticdl federated keys`."
)
_ANSWER_S = 5.0
# OpenSSL's error codes for certificates.
_WRONG_HOST, _EXPIRED = (62, 64), 10


def check_connection(address: str, ca: Path | None) -> str | None:
    """Check that the aggregator is reachable and has the expected certificate.

    Args:
        address: HOST:PORT.
        ca: Certificate of the authority that signed its certificate; None for plain HTTP.

    Returns:
        None if it answers as expected; otherwise why it cannot be reached. This may be temporary.

    Raises:
        TrainingError: A server answers, but with another certificate or protocol. Trying again is
            useless.
    """
    url = f"{'http' if ca is None else 'https'}://{address}/health"
    try:
        context = None if ca is None else ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise TrainingError(f"{ca}: cannot be read as a certificate: {error}.") from error
    try:
        urllib.request.urlopen(url, timeout=_ANSWER_S, context=context).close()  # noqa: S310 - http(s)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.FORBIDDEN and ca is None:
            raise TrainingError(ANOTHER_USER) from error
    except (OSError, http.client.HTTPException) as error:
        return _explain(error, address, ca)
    return None


def _explain(error: Exception, address: str, ca: Path | None) -> str:
    """Explain why the connection to an aggregator failed.

    Raises:
        TrainingError: The aggregator can be reached, but its protocol or its certificate is wrong.
    """
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        raise TrainingError(_explain_certificate(reason, address, ca)) from error
    if isinstance(reason, ssl.SSLError):
        raise TrainingError(
            f"{address} does not speak TLS ({reason.reason}), but this party has keys. Start the "
            "aggregator with its keys, or check the port."
        ) from error
    # A TLS server answers a plain HTTP request by closing the connection, or with a TLS alert.
    if ca is None and isinstance(reason, (http.client.HTTPException, ConnectionResetError)):
        raise TrainingError(
            f"{address} does not speak plain HTTP; it probably speaks TLS. Set this party's keys: "
            "the folder `parties/NAME` that `elasticdl federated keys` wrote."
        ) from error
    if isinstance(reason, socket.gaierror):
        return f"{address}: the host name cannot be resolved ({reason.strerror})."
    if isinstance(reason, ConnectionRefusedError):
        return f"{address}: connection refused. Is the aggregator running?"
    if isinstance(reason, TimeoutError):
        return f"{address}: no answer within {_ANSWER_S:.0f} s. Is a firewall in the way?"
    return f"{address}: cannot be reached: {reason}."


def _explain_certificate(
    reason: ssl.SSLCertVerificationError, address: str, ca: Path | None
) -> str:
    if reason.verify_code in _WRONG_HOST:
        host = address.rpartition(":")[0]
        return (
            f"The certificate of {address} is not valid for that host: {reason.verify_message}. "
            f"Create the keys with --host={host}, or connect to the aggregator by a host in its "
            "certificate."
        )
    if reason.verify_code == _EXPIRED:
        return f"The certificate of {address} has expired. Create new keys for the federation."
    return (
        f"The certificate of {address} was not signed by {ca} ({reason.verify_message}): it "
        "belongs to another federation, or to another server. Nothing was sent. Use keys from the "
        "same `elasticdl federated keys` on all machines."
    )
