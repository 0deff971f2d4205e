"""Certificates and node keys of a federation, made once, by whoever sets it up.

    FOLDER/ca.key               signs; kept by who made it, needed by nobody
    FOLDER/aggregator/          ca.crt, server.crt, server.key, parties/NAME.pub
    FOLDER/parties/NAME/        ca.crt, node.key, node.pub

Each subfolder is what is carried to one machine, and all that this machine needs. A party knows the
aggregator by the certificate, the aggregator a party by the signature of its node key: a name
belongs to a key, so no party can speak in another's.

A config may name the files wherever they lie: `of` takes those, and no others.

Callers: `elasticdl federated keys`, `deployment.py`.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import ipaddress
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from elasticdl import user_files
from elasticdl.errors import OutputError, UsageError

if TYPE_CHECKING:
    from elasticdl.engines.federated.settings import Tls

AGGREGATOR, PARTIES = "aggregator", "parties"
CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY = "server.crt", "server.key"
NODE_KEY, NODE_PUBLIC_KEY = "node.key", "node.pub"
# The superlink listens here and the front knows it by this name, whatever the machine's own is.
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_CA_YEARS, _SERVER_YEARS = 10, 3
_CLOCK_SKEW = dt.timedelta(days=1)
# A bundle of all authorities of a browser has a quarter of it.
_MOST_CERTIFICATE_BYTES = 2**20


@dataclass(frozen=True)
class AggregatorKeys:
    """What the aggregator's machine has: FOLDER/aggregator.

    Attributes:
        ca: The certificate that signed the server's.
        certificate: The server's certificate.
        key: The server's private key.
        parties: The public key of each party, by name.
    """

    ca: Path
    certificate: Path
    key: Path
    parties: Mapping[str, Path]

    @classmethod
    def read(cls, folder: Path) -> AggregatorKeys:
        """Find the files in a folder.

        Raises:
            UsageError: One of them is not there, or is no certificate.
        """
        _demand(folder, (CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY), "aggregator")
        files = (folder / name for name in (CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY))
        return cls._of(*files)

    @classmethod
    def of(cls, tls: Tls) -> AggregatorKeys:
        """Take the files that a config names; the parties' keys lie beside the certificate.

        Raises:
            UsageError: One of them is not named or not there, or is no certificate.
        """
        return cls._of(
            _named(tls.ca_certificate, "ca_certificate"),
            _named(tls.certificate, "certificate"),
            _named(tls.private_key, "private_key"),
        )

    @classmethod
    def _of(cls, ca: Path, certificate: Path, key: Path) -> AggregatorKeys:
        _check_certificate(ca, "ca_certificate")
        _check_certificate(certificate, "certificate")
        folder = certificate.parent / PARTIES
        public = sorted(path for path in folder.glob("*.pub") if path.is_file())
        if not public:
            raise UsageError(
                f"{folder}: holds no NAME.pub, so no party could connect. "
                "Copy the folder `aggregator` that `elasticdl federated keys` wrote, whole."
            )
        return cls(ca, certificate, key, {path.stem: path for path in public})


@dataclass(frozen=True)
class PartyKeys:
    """What a party's machine has: FOLDER/parties/NAME.

    Attributes:
        ca: The certificate that signed the aggregator's.
        key: The party's private key.
        fingerprint: Of its public key, as `ssh-keygen -lf NAME.pub` prints it.
    """

    ca: Path
    key: Path
    fingerprint: str

    @classmethod
    def read(cls, folder: Path) -> PartyKeys:
        """Find the files in a folder.

        Raises:
            UsageError: One of them is not there, or is no certificate or no key.
        """
        _demand(folder, (CA_CERTIFICATE, NODE_KEY), "parties/NAME")
        return cls._of(folder / CA_CERTIFICATE, folder / NODE_KEY)

    @classmethod
    def of(cls, tls: Tls) -> PartyKeys:
        """Take the files that a config names.

        Raises:
            UsageError: One of them is not named or not there, or is no certificate or no key.
        """
        return cls._of(
            _named(tls.ca_certificate, "ca_certificate"), _named(tls.private_key, "private_key")
        )

    @classmethod
    def _of(cls, ca: Path, key: Path) -> PartyKeys:
        _check_certificate(ca, "ca_certificate")
        return cls(ca, key, _fingerprint(key))


def _named(path: Path | None, key: str) -> Path:
    """Return the file that a key of `tls_config` names."""
    if path is None:
        raise UsageError(
            f"connection.info.tls_config has no {key}, and nothing is sent without it. Name the "
            "file that `elasticdl federated keys` wrote, or leave tls_config out on one machine."
        )
    if not path.is_file():
        raise UsageError(
            f"{path}: is not there, or is no file; connection.info.tls_config names it as {key}. "
            "Name the file that `elasticdl federated keys` wrote."
        )
    return path


def _check_certificate(path: Path, key: str) -> None:
    """Look whether a file has certificates; the error has nothing of what else it may hold."""
    try:
        with user_files.open_regular(path) as file:
            content = file.read(_MOST_CERTIFICATE_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}.") from error
    try:
        x509.load_pem_x509_certificates(content)
    except ValueError:
        raise UsageError(
            f"{path}: is no certificate; connection.info.tls_config.{key} has to name one, as text "
            "(PEM). Name the file that `elasticdl federated keys` wrote."
        ) from None


def _fingerprint(path: Path) -> str:
    """Return the fingerprint of a party's key; the error has nothing of what the file holds."""
    try:
        with user_files.open_regular(path) as file:
            content = file.read(_MOST_CERTIFICATE_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}.") from error
    try:
        private = serialization.load_ssh_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UsageError(
            f"{path}: is no private key of a party, which is text that begins with BEGIN OPENSSH "
            "PRIVATE KEY and has no password. Name the node.key that `elasticdl federated keys` "
            "wrote."
        ) from None
    public = private.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def make_keys(folder: Path, parties: Sequence[str], hosts: Sequence[str]) -> None:
    """Make the keys of a federation.

    Args:
        folder: Is made, whole or not at all; the module says what it will hold.
        parties: Their names.
        hosts: Names and addresses by which parties reach the aggregator. This machine's own
            (localhost) always work.

    Raises:
        UsageError: The folder exists; a name is none, or is given twice; no host is given.
        OutputError: The folder cannot be written.
    """
    _check(folder, parties, hosts)
    # A folder that was begun and left by a crash has no name that anybody would use.
    making = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        making.mkdir(mode=0o700, parents=True)
        _write_all(making, parties, hosts)
        # Fails if somebody has made it meanwhile: a folder replaces only an empty one.
        making.rename(folder)
    except OSError as error:
        raise OutputError(
            f"{folder}: the keys cannot be written there: {error.strerror}. "
            "Name a folder that does not exist in one that can be written to."
        ) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _check(folder: Path, parties: Sequence[str], hosts: Sequence[str]) -> None:
    if folder.exists():
        raise UsageError(
            f"{folder} exists already, and keys are never overwritten: parties that have them "
            "would be locked out. Name another folder, or move this one away."
        )
    if not parties or not hosts:
        raise UsageError(
            "Keys need the name of each party, and a name or an address by which parties reach "
            "the aggregator: --party=north --party=south --host=fl.example.org"
        )
    for name in parties:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot be the name of a party: letters, digits, '.', '_' and '-' can, "
                "at most 63, and a letter or a digit first."
            )
    if len({name.lower() for name in parties}) < len(parties):
        raise UsageError(f"Two parties have one name: {', '.join(sorted(parties))}.")


def _write_all(folder: Path, parties: Sequence[str], hosts: Sequence[str]) -> None:
    ca_key = ec.generate_private_key(ec.SECP384R1())
    ca = _certificate("ElasticDL federation CA", ca_key, None, hosts=(), years=_CA_YEARS)
    ca_pem = ca.public_bytes(serialization.Encoding.PEM)
    _write(folder / CA_KEY, _private(ca_key, serialization.PrivateFormat.PKCS8))

    server_key = ec.generate_private_key(ec.SECP384R1())
    server = _certificate(
        hosts[0], server_key, (ca, ca_key), hosts=[*hosts, *LOCAL_HOSTS], years=_SERVER_YEARS
    )
    aggregator = folder / AGGREGATOR
    _write(aggregator / CA_CERTIFICATE, ca_pem)
    _write(aggregator / SERVER_CERTIFICATE, server.public_bytes(serialization.Encoding.PEM))
    _write(aggregator / SERVER_KEY, _private(server_key, serialization.PrivateFormat.PKCS8))

    for name in parties:
        # The curve, and the files' format, are those that Flower reads.
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        party = folder / PARTIES / name
        _write(party / CA_CERTIFICATE, ca_pem)
        _write(party / NODE_KEY, _private(key, serialization.PrivateFormat.OpenSSH))
        _write(party / NODE_PUBLIC_KEY, public)
        _write(aggregator / PARTIES / f"{name}.pub", public)


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    signer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
    *,
    hosts: Sequence[str],
    years: int,
) -> x509.Certificate:
    """Return a certificate: of a CA that signs itself, or of a server that a CA signs."""
    # A common name has room for 64 characters; nobody looks at it, hosts are extensions.
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now = dt.datetime.now(dt.UTC)
    issuer, issuer_key = (subject, key) if signer is None else (signer[0].subject, signer[1])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of other machines may be behind ours.
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + dt.timedelta(days=365 * years))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .add_extension(
            x509.BasicConstraints(ca=signer is None, path_length=0 if signer is None else None),
            critical=True,
        )
        .add_extension(_usage(is_ca=signer is None), critical=True)
    )
    if signer is not None:
        names = [_general_name(host) for host in dict.fromkeys(hosts)]
        builder = builder.add_extension(
            x509.SubjectAlternativeName(names), critical=False
        ).add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(issuer_key, hashes.SHA384())


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise UsageError(
            f"{host!r} is neither the name nor the address of a machine: {error}."
        ) from error


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write(path: Path, content: bytes) -> None:
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
    # With its mode from the first moment on, and never through a link that lies there.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _demand(folder: Path, names: Sequence[str], which: str) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UsageError(
            f"{folder}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not there. "
            f"Name the folder `{which}` that `elasticdl federated keys` wrote, copied whole."
        )
