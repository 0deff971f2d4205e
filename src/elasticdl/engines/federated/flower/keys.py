"""Certificates and node keys of a federation, created once by the person who sets it up.

    FOLDER/ca.key               signs certificates; stays with its creator, no machine needs it
    FOLDER/aggregator/          ca.crt, server.crt, server.key, parties/NAME.pub
    FOLDER/parties/NAME/        ca.crt, node.key, node.pub

Each subfolder is copied to one machine and has everything that this machine needs. A party
authenticates the aggregator by its certificate, and the aggregator authenticates a party by the
signature of its node key. A name belongs to a key, so a party cannot use another's name.

If a config names files at other paths, `AggregatorKeys.of` and `PartyKeys.of` read those.

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
    from elasticdl.engines.federated.config.settings import Tls

AGGREGATOR, PARTIES = "aggregator", "parties"
CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY = "server.crt", "server.key"
NODE_KEY, NODE_PUBLIC_KEY = "node.key", "node.pub"
# The TLS proxy connects to the superlink by one of these names, not by the machine's own name.
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_CA_YEARS, _SERVER_YEARS = 10, 3
_CLOCK_SKEW = dt.timedelta(days=1)
# Four times the size of a browser's bundle of all certificate authorities.
_MAX_CERTIFICATE_BYTES = 2**20


@dataclass(frozen=True)
class AggregatorKeys:
    """Keys on the aggregator's machine: FOLDER/aggregator.

    Attributes:
        ca: Certificate of the authority (CA) that signed the server's certificate.
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
        """Find and check the key files in a folder.

        Raises:
            UsageError: A file is missing, or is not a certificate.
        """
        _demand(folder, (CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY), "aggregator")
        files = (folder / name for name in (CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY))
        return cls._of(*files)

    @classmethod
    def of(cls, tls: Tls) -> AggregatorKeys:
        """Find and check the files that a config names, and the parties' public keys.

        The public keys are read from the folder `parties` next to the aggregator's certificate.

        Raises:
            UsageError: The config does not name a file, a file is missing or is not a certificate,
                or there is no public key.
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
                f"{folder}: contains no NAME.pub, so no party could connect. Copy the complete "
                "folder `aggregator` that `elasticdl federated keys` wrote."
            )
        return cls(ca, certificate, key, {path.stem: path for path in public})


@dataclass(frozen=True)
class PartyKeys:
    """Keys on a party's machine: FOLDER/parties/NAME.

    Attributes:
        ca: Certificate of the authority (CA) that signed the aggregator's certificate.
        key: The party's private key.
        fingerprint: Fingerprint of its public key, as `ssh-keygen -lf NAME.pub` prints it.
    """

    ca: Path
    key: Path
    fingerprint: str

    @classmethod
    def read(cls, folder: Path) -> PartyKeys:
        """Find and check the key files in a folder.

        Raises:
            UsageError: A file is missing, or is not a certificate or not a key.
        """
        _demand(folder, (CA_CERTIFICATE, NODE_KEY), "parties/NAME")
        return cls._of(folder / CA_CERTIFICATE, folder / NODE_KEY)

    @classmethod
    def of(cls, tls: Tls) -> PartyKeys:
        """Find and check the files that a config names.

        Raises:
            UsageError: The config does not name a file, or a file is missing or is not a
                certificate or key.
        """
        return cls._of(
            _named(tls.ca_certificate, "ca_certificate"), _named(tls.private_key, "private_key")
        )

    @classmethod
    def _of(cls, ca: Path, key: Path) -> PartyKeys:
        _check_certificate(ca, "ca_certificate")
        return cls(ca, key, _fingerprint(key))


def _named(path: Path | None, key: str) -> Path:
    """Check that an entry of `tls_config` is set and its file exists; return the path.

    `key` is the name of the entry, for the error.
    """
    if path is None:
        raise UsageError(
            f"connection.info.tls_config.{key} is missing; it is required for encryption. Set it "
            "to the file that `elasticdl federated keys` wrote, or leave tls_config out if all "
            "processes run on one machine."
        )
    if not path.is_file():
        raise UsageError(
            f"{path}: not found, or not a file; it is set as connection.info.tls_config.{key}. "
            "Specify the file that `elasticdl federated keys` wrote."
        )
    return path


def _check_certificate(path: Path, key: str) -> None:
    """Check that a file contains certificates.

    Errors never quote its contents. `key` is the entry of `tls_config` that names the file.
    """
    try:
        with user_files.open_regular(path) as file:
            content = file.read(_MAX_CERTIFICATE_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}.") from error
    try:
        x509.load_pem_x509_certificates(content)
    except ValueError:
        raise UsageError(
            f"{path}: not a certificate; expected one in PEM format for "
            f"connection.info.tls_config.{key}. Specify the file that `elasticdl federated keys` "
            "wrote."
        ) from None


def _fingerprint(path: Path) -> str:
    """Read a party's private key; return the fingerprint of its public key.

    Errors never quote the file's contents.
    """
    try:
        with user_files.open_regular(path) as file:
            content = file.read(_MAX_CERTIFICATE_BYTES)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}.") from error
    try:
        private = serialization.load_ssh_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UsageError(
            f"{path}: not the private key of a party; expected text that begins with BEGIN OPENSSH "
            "PRIVATE KEY, without a password. Specify the node.key that `elasticdl federated keys` "
            "wrote."
        ) from None
    public = private.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def make_keys(folder: Path, parties: Sequence[str], hosts: Sequence[str]) -> None:
    """Create the keys of a federation.

    Args:
        folder: Folder for the key files: `ca.key`, and one subfolder to copy to each machine. It is
            created completely or not at all.
        parties: Names of the parties.
        hosts: Names and addresses by which parties reach the aggregator. Loopback names and
            addresses, such as localhost, are added.

    Raises:
        UsageError: The folder exists; a name is invalid or given twice; no party or no host is
            given.
        OutputError: The folder cannot be written.
    """
    _check(folder, parties, hosts)
    # Written under a hidden name first, so that a crash does not leave an incomplete folder.
    making = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        making.mkdir(mode=0o700, parents=True)
        _write_all(making, parties, hosts)
        # Fails if another process has created the folder: a rename replaces only an empty folder.
        making.rename(folder)
    except OSError as error:
        raise OutputError(
            f"{folder}: the keys cannot be written there: {error.strerror}. Choose a new folder in "
            "a folder that you can write to."
        ) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _check(folder: Path, parties: Sequence[str], hosts: Sequence[str]) -> None:
    if folder.exists():
        raise UsageError(
            f"{folder} already exists, and keys are never overwritten, because parties that use "
            "them could not connect any more. Choose another folder, or move this one."
        )
    if not parties or not hosts:
        raise UsageError(
            "The names of the parties, and a host name or address of the aggregator, are required: "
            "--party=north --party=south --host=fl.example.org"
        )
    for name in parties:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not a valid name of a party; expected at most 63 letters, digits, "
                "'.', '_' and '-', starting with a letter or digit."
            )
    if len({name.lower() for name in parties}) < len(parties):
        raise UsageError(f"Two parties have the same name: {', '.join(sorted(parties))}.")


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
        # Flower requires this curve and this file format.
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
    """Create a certificate: of the authority (CA) if `signer` is None, otherwise of a server.

    The first is self-signed, the second is signed by `signer` and valid for `hosts`.
    """
    # A common name is limited to 64 characters; it is not used, because hosts are in an extension.
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now = dt.datetime.now(dt.UTC)
    issuer, issuer_key = (subject, key) if signer is None else (signer[0].subject, signer[1])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # The clocks of other machines may be behind ours.
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
        raise UsageError(f"{host!r} is neither a host name nor an IP address: {error}.") from error


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write(path: Path, content: bytes) -> None:
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
    # Created with its final mode, and never through an existing link.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _demand(folder: Path, names: Sequence[str], which: str) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UsageError(
            f"{folder}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing. Name "
            f"a complete copy of the folder `{which}` that `elasticdl federated keys` wrote."
        )
