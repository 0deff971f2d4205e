"""The files of a federation: who gets which, and who can read them."""

import datetime as dt
import ipaddress
import shutil

import pytest

from elasticdl.engines.federated.config.settings import Tls
from elasticdl.engines.federated.flower.keys import AggregatorKeys, PartyKeys, make_keys
from elasticdl.errors import OutputError, UsageError

x509 = pytest.importorskip("cryptography.x509")
from cryptography.hazmat.primitives import serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "keys"
    make_keys(folder, ["north", "south"], ["fl.example.org", "10.0.0.7"])
    return folder


def test_each_machine_gets_its_own_folder(folder):
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    assert names == [
        "aggregator/ca.crt",
        "aggregator/parties/north.pub",
        "aggregator/parties/south.pub",
        "aggregator/server.crt",
        "aggregator/server.key",
        "ca.key",
        "parties/north/ca.crt",
        "parties/north/node.key",
        "parties/north/node.pub",
        "parties/south/ca.crt",
        "parties/south/node.key",
        "parties/south/node.pub",
    ]


def test_other_users_cannot_read_keys(folder):
    assert {path.stat().st_mode & 0o077 for path in [folder, *folder.rglob("*")]} == {0}


def test_the_server_certificate_covers_its_hosts_and_localhost(folder):
    server = x509.load_pem_x509_certificate((folder / "aggregator/server.crt").read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value

    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address(address) for address in ("10.0.0.7", "127.0.0.1", "::1")
    ]


def test_the_server_is_signed_by_the_ca_of_the_parties(folder):
    server = x509.load_pem_x509_certificate((folder / "aggregator/server.crt").read_bytes())
    ca = x509.load_pem_x509_certificate((folder / "parties/north/ca.crt").read_bytes())

    server.verify_directly_issued_by(ca)
    assert server.not_valid_after_utc > dt.datetime.now(dt.UTC) + dt.timedelta(900)


def test_a_server_cannot_sign_for_others(folder):
    server = x509.load_pem_x509_certificate((folder / "aggregator/server.crt").read_bytes())

    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_flower_reads_a_node_key(folder):
    private = serialization.load_ssh_private_key(
        (folder / "parties/north/node.key").read_bytes(), None
    )
    public = serialization.load_ssh_public_key(
        (folder / "aggregator/parties/north.pub").read_bytes()
    )

    assert isinstance(private.curve, ec.SECP384R1)
    assert private.public_key() == public


def test_each_party_has_its_own_key(folder):
    keys = AggregatorKeys.read(folder / "aggregator").parties

    assert sorted(keys) == ["north", "south"]
    assert keys["north"].read_bytes() != keys["south"].read_bytes()


def test_keys_are_never_overwritten(folder):
    before = (folder / "ca.key").read_bytes()

    with pytest.raises(UsageError, match="never overwritten"):
        make_keys(folder, ["north"], ["localhost"])

    assert (folder / "ca.key").read_bytes() == before


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "-x", "ä", "a" * 64])
def test_a_name_that_could_leave_the_folder_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match="is not a valid name of a party"):
        make_keys(tmp_path / "keys", [name], ["localhost"])

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("parties", "hosts", "message"),
    [
        ([], ["localhost"], "The names of the parties"),
        (["north"], [], "address of the aggregator"),
        (["north", "North"], ["localhost"], "Two parties have the same name: North, north"),
        (
            ["north"],
            ["bücher.example"],
            "'bücher.example' is neither a host name nor an IP address",
        ),
    ],
)
def test_an_impossible_federation_is_refused(tmp_path, parties, hosts, message):
    with pytest.raises(UsageError, match=message):
        make_keys(tmp_path / "keys", parties, hosts)

    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_folder_is_reported(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(OutputError, match="cannot be written there"):
        make_keys(tmp_path / "file" / "keys", ["north"], ["localhost"])


def test_missing_files_of_a_folder_are_named(folder, tmp_path):
    (tmp_path / "ca.crt").touch()

    with pytest.raises(UsageError, match="node.key is missing"):
        PartyKeys.read(tmp_path)
    with pytest.raises(UsageError, match="server.crt, server.key are missing"):
        AggregatorKeys.read(tmp_path)
    assert PartyKeys.read(folder / "parties/north").key.is_file()


# --- files that a config names -------------------------------------------------------------------


@pytest.fixture
def carried(folder, tmp_path):
    """Return where a party and the aggregator keep their authority's certificate."""
    for name in ("aggregator/ca.crt", "parties/north/ca.crt"):
        shutil.copy(folder / name, tmp_path / f"{name.partition('/')[0]}.pem")
    return tmp_path / "aggregator.pem", tmp_path / "parties.pem"


def test_the_authority_comes_from_the_config(folder, carried):
    at_aggregator, at_party = carried
    server = folder / "aggregator"

    aggregator = AggregatorKeys.of(Tls(at_aggregator, server / "server.crt", server / "server.key"))
    party = PartyKeys.of(Tls(at_party, None, folder / "parties/north/node.key"))

    assert (aggregator.ca, party.ca) == carried
    assert sorted(aggregator.parties) == ["north", "south"]
    assert party.key == folder / "parties/north/node.key"


@pytest.mark.parametrize("content", [None, "", "root:secret:0", "-----BEGIN CERTIFICATE-----\nAA"])
def test_an_authority_without_a_certificate_is_refused_without_its_content(
    folder, tmp_path, content
):
    ca = tmp_path / "ca.pem"
    if content is not None:
        ca.write_text(content)
    said = "not found" if content is None else "not a certificate"
    server = folder / "aggregator"

    for read in (
        lambda: PartyKeys.of(Tls(ca, None, folder / "parties/north/node.key")),
        lambda: AggregatorKeys.of(Tls(ca, server / "server.crt", server / "server.key")),
        lambda: AggregatorKeys.of(Tls(server / "ca.crt", ca, server / "server.key")),
    ):
        with pytest.raises(UsageError, match=said) as raised:
            read()
        assert str(ca) in str(raised.value)
        assert "certificate" in str(raised.value)
        assert "secret" not in str(raised.value)


def test_a_party_without_a_key_does_not_fall_back_to_plain_text(folder):
    with pytest.raises(UsageError, match="private_key is missing; it is required for encryption"):
        PartyKeys.of(Tls(folder / "parties/north/ca.crt", None, None))


def test_an_invalid_key_is_refused_without_its_content(folder, tmp_path):
    ca, key = folder / "parties/north/ca.crt", tmp_path / "node.key"
    for content in ("root:secret:0", (folder / "ca.key").read_text()):
        key.write_text(content)

        with pytest.raises(UsageError, match="not the private key of a party") as raised:
            PartyKeys.of(Tls(ca, None, key))
        assert content[:20] not in str(raised.value)
