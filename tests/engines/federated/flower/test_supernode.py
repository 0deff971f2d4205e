"""What a party is told when it does not get in, and what its supernode may start."""

import base64
import hashlib
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from elasticdl.engines.federated.flower import deployment, supernode
from elasticdl.engines.federated.flower.certificate_check import check_connection
from elasticdl.engines.federated.flower.keys import PartyKeys, make_keys
from elasticdl.engines.federated.flower.supernode import Supernode, explain, refusal
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import TrainingError


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "keys"
    make_keys(folder, ["north"], ["fl.example.org"])
    return folder


@pytest.fixture
def server(request, keys):
    """Return the address of something that listens, and says what the test wants it to."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(20)

    def serve():
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(keys / "aggregator/server.crt", keys / "aggregator/server.key")
        stream, _ = listener.accept()
        with stream:
            try:
                if request.param == "tls":
                    stream = context.wrap_socket(stream, server_side=True)
                stream.recv(1000)
                status = b"403 Forbidden" if request.param == "foreign" else b"200 OK"
                stream.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
            except OSError:
                pass
            finally:
                stream.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    thread.join()
    listener.close()


@pytest.mark.parametrize("server", ["tls"], indirect=True)
def test_an_aggregator_with_the_right_certificate_answers(server, keys):
    assert check_connection(server, keys / "parties/north/ca.crt") is None


@pytest.mark.parametrize("server", ["tls"], indirect=True)
def test_another_ca_is_detected(server, tmp_path):
    make_keys(tmp_path / "keys", ["north"], ["localhost"])

    with pytest.raises(TrainingError, match="was not signed by .*another federation"):
        check_connection(server, tmp_path / "keys/parties/north/ca.crt")


@pytest.mark.parametrize("server", ["tls"], indirect=True)
def test_a_host_missing_in_the_certificate_is_detected(server, keys):
    # The whole of 127/8 is this machine, and the certificate names one address of it.
    address = server.replace("127.0.0.1", "127.0.0.1.nip.invalid")
    with pytest.MonkeyPatch.context() as patch:
        real = socket.getaddrinfo
        patch.setattr(
            "socket.getaddrinfo", lambda host, *rest, **more: real("127.0.0.1", *rest, **more)
        )
        with pytest.raises(TrainingError, match="not valid for that host.*--host=127.0.0.1.nip"):
            check_connection(address, keys / "parties/north/ca.crt")


@pytest.mark.parametrize("server", ["plain"], indirect=True)
def test_a_party_with_keys_gets_an_error_if_the_aggregator_has_none(server, keys):
    with pytest.raises(TrainingError, match="does not speak TLS .*but this party has keys"):
        check_connection(server, keys / "parties/north/ca.crt")


@pytest.mark.parametrize("server", ["tls"], indirect=True)
def test_a_party_without_keys_gets_an_error_if_it_needs_them(server):
    with pytest.raises(TrainingError, match="it probably speaks TLS. Set this party's keys"):
        check_connection(server, None)


@pytest.mark.parametrize("server", ["plain"], indirect=True)
def test_a_connection_without_tls_on_both_sides_works(server):
    assert check_connection(server, None) is None


@pytest.mark.parametrize("server", ["foreign"], indirect=True)
def test_a_party_of_another_user_gets_an_error_about_keys(server):
    with pytest.raises(TrainingError, match="by another user of this machine, without keys"):
        check_connection(server, None)


def test_an_early_party_of_another_user_gets_an_error_about_keys():
    said = "httpx.HTTPStatusError: Client error '403 Forbidden' for url 'http://127.0.0.1:5000/...'"

    assert "by another user of this machine, without keys" in refusal(said, None)


def test_an_unreachable_aggregator_is_a_reason_not_an_error():
    assert "connection refused. Is the aggregator running?" in check_connection("127.0.0.1:1", None)
    assert "the host name cannot be resolved" in check_connection("no.such.host.invalid:1", None)


def test_an_unknown_failure_shows_the_last_output_of_flower():
    said = "one\ntwo\n\n\x1b[91mthree\nfour\nINFO:     Finished server process [12]\n"

    assert explain(said) == "Flower's supernode ended: two / three / four."
    assert explain("") == "Flower's supernode ended: no output."


# --- what is tried again, and for how long ------------------------------------------------------

REFUSED = "[code: 2004] Failed to activate SuperNode."


class Ended:
    """A child that has ended, or one that the aggregator let in."""

    def __init__(self, text, is_alive=False):
        self.text, self.is_alive = text, is_alive

    def output(self):
        return self.text

    def end(self):
        pass


@pytest.fixture
def watched(tmp_path, keys, monkeypatch):
    """Return a function: what supernodes print, one after another, the last again and again."""
    monkeypatch.setattr(supernode, "_WATCH_S", 0.01)
    monkeypatch.setattr(supernode, "_RETRY_S", 0.01)
    monkeypatch.setattr(supernode, "_PATIENCE_S", 0.1)

    def start(address, *texts):
        party = PartyKeys.read(keys / "parties/north")
        node = Supernode(tmp_path, address, party, tmp_path / "s")
        left = [Ended(text) for text in texts]
        monkeypatch.setattr(node, "_start", lambda: left.pop(0) if len(left) > 1 else left[0])
        monkeypatch.setattr(node, "_start_prefork_server", lambda: Ended("", is_alive=True))
        thread = threading.Thread(target=node._watch)
        thread.start()
        return node, thread

    return start


def test_a_party_whose_key_is_refused_ends_and_names_its_key(watched, keys):
    """Also where it was connected before: the aggregator may have been started without its key."""
    node, thread = watched("127.0.0.1:1", REFUSED)
    node._set(connected=True)
    thread.join(10)

    public = (keys / "aggregator/parties/north.pub").read_text().split()[1]
    # As ssh-keygen does, which need not be installed.
    digest = base64.b64encode(hashlib.sha256(base64.b64decode(public)).digest()).decode()
    assert f"(SHA256:{digest.rstrip('=')})" in node.error
    assert "copy this party's public key" in node.error
    with pytest.raises(TrainingError, match="rejected this party"):
        node.wait(0)


def test_a_party_waits_for_an_unreachable_aggregator(watched, caplog):
    node, thread = watched("127.0.0.1:1", *["pid 1", "pid 2", "pid 3"] * 10)
    thread.join(0.5)

    assert thread.is_alive()
    node._closing.set()
    thread.join(10)
    assert node.error is None
    assert caplog.text.count("connection refused") == 1
    assert "Retrying until it succeeds." in caplog.text


@pytest.mark.parametrize("server", ["plain"], indirect=True)
def test_an_early_party_detects_a_different_aggregator(watched, server, monkeypatch):
    once, real = [], supernode.check_connection

    def knock_once(*given):
        try:
            real(*given) if not once else None
        except TrainingError as error:
            once.append(error)
        raise once[0]

    monkeypatch.setattr(supernode, "check_connection", knock_once)
    node, thread = watched(server, "ERROR: CERTIFICATE_VERIFY_FAILED")
    thread.join(10)

    assert "does not speak TLS" in node.error


# --- what it may start --------------------------------------------------------------------------


@pytest.fixture
def commands(tmp_path):
    """Return the folder that is all of a supernode's PATH."""
    Supernode(tmp_path, "127.0.0.1:1", None, tmp_path / "s").write_commands()
    return tmp_path / "bin"


def test_a_supernode_can_start_only_two_commands(commands):
    """The aggregator says which kind of task it wants; only this kind is ours."""
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

    assert sorted(path.name for path in commands.iterdir()) == [
        "flower-superexec",
        "flwr-clientapp",
    ]
    startable = [
        name for name in TASK_TYPE_TO_COMMAND.values() if shutil.which(name, path=commands)
    ]
    assert startable == ["flwr-clientapp"]


def test_its_path_contains_no_other_command(commands, tmp_path):
    node = Supernode(tmp_path, "127.0.0.1:1", None, tmp_path / "s")

    assert node.variables()["PATH"] == str(commands)


def test_the_client_app_command_is_ours(commands, tmp_path):
    """It waits for the prefork server, which is missing."""
    started = subprocess.Popen(
        [commands / "flwr-clientapp", "--token", "x"], stderr=subprocess.PIPE
    )
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            started.wait(0.5)
        assert "prefork_client.py" in Path(f"/proc/{started.pid}/cmdline").read_text()
    finally:
        started.kill()
        started.communicate()


class Notes(Silent):
    """Keeps what people are told, and orders to a daemon to stop."""

    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)

    def stop(self):
        self.said.append("stop")


def test_a_connected_party_is_reported_and_watched_without_polling(tmp_path, monkeypatch):
    """An earlier version kept asking whether it was connected."""
    supernode, told = Supernode(tmp_path, "127.0.0.1:1", None, tmp_path / "s"), Notes()
    waited, wait = [], supernode.wait
    monkeypatch.setattr(supernode, "wait", lambda limit_s: waited.append(limit_s) or wait(limit_s))
    watching = threading.Thread(target=deployment._watch, args=(supernode, told, told))
    watching.start()
    supernode._set(connected=True)
    watching.join(0.3)

    assert watching.is_alive()
    assert told.said == ["Connected."]
    assert len(waited) == 1

    supernode._set(connected=False, error="gone")
    watching.join(10)
    assert told.said == ["Connected.", "stop"]
