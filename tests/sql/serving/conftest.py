"""Servers started from the command line, and certificates that only these tests trust."""

from __future__ import annotations

import datetime as dt
import functools
import ipaddress
from pathlib import Path

import pytest

from elasticdl.gc_tuning import collect_at_exit

pytest.importorskip("grpc")
pytest.importorskip("cryptography")
TOKEN = "a token of these tests"
# Or DuckDB reports leaks when the tests end.
collect_at_exit()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory) -> Path:
    """Return a folder with `NAME.pem` and `NAME.key` of an authority, a server and a client."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = tmp_path_factory.mktemp("certificates")
    now = dt.datetime.now(dt.UTC)
    issuer = None
    for name in ("ca", "server", "client"):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        if issuer is None:
            issuer = (subject, key)
        addresses = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer[0])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=name == "ca", path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
            .sign(issuer[1], hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(pem))
        plain = serialization.NoEncryption()
        kind = serialization.PrivateFormat.PKCS8
        (folder / f"{name}.key").write_bytes(key.private_bytes(pem, kind, plain))
    return folder


@pytest.fixture
def serve(shop, tmp_path, start_server):
    """Return a function that starts `elasticdl sql-server` on the shop with more options."""
    return functools.partial(start_server, shop, tmp_path / "models")


@pytest.fixture
def token_file(tmp_path) -> Path:
    """Return a file with `TOKEN`."""
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return path
