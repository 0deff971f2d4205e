"""What travels between an aggregator and its parties, read before TLS hides it.

The parties of a real federation without keys reach the aggregator through a tap, which writes down
each byte in both directions. With keys, the same bytes go through TLS.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import pickletools
import re
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.engines.conftest import write_records
from tests.engines.federated.conftest import TORCH_MODEL
from tests.engines.federated.flower.deployed import Commands, change, connect, rounds
from tests.engines.federated.flower.listeners import SOCKETS_OF_COMMANDS, seen_until_the_end

from elasticdl import federated
from elasticdl.data.recordio import RecordIOSource

h11 = pytest.importorskip("h11")

pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.timeout(300)]
SECRET = "a-secret-of-the-environment"
LONGEST_WORD = 200


@dataclass
class Tap:
    """Passes connections on, and keeps what they carry: one entry for each direction of each."""

    port: int
    carried: list[tuple[str, bytearray]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.own_port = self._listener.getsockname()[1]
        self._ends = [self._listener]
        self._threads = []
        self._start(self._accept)

    def close(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in self._ends:
            end.close()

    def _start(self, target, *arguments) -> None:
        self._threads.append(threading.Thread(target=target, args=arguments))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                party, _ = self._listener.accept()
                self._ends.append(party)
                aggregator = socket.create_connection(("127.0.0.1", self.port))
                self._ends.append(aggregator)
                self._pass(party, aggregator, "party")
                self._pass(aggregator, party, "aggregator")

    def _pass(self, one, other, who) -> None:
        kept = bytearray()
        self.carried.append((who, kept))
        self._start(_pass, one, other, kept)


def _pass(one, other, kept) -> None:
    with contextlib.suppress(OSError):
        while piece := one.recv(65536):
            kept += piece
            other.sendall(piece)
    for end in (one, other):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Exchange:
    """What was carried in a federation's training.

    Attributes:
        folder: Of the configs and data.
        plain: All of it, in no order.
        bodies: (who spoke, path asked for, body), of each request and response.
        port: The aggregator's.
        listened: What the commands were seen to listen on; see `seen_until_the_end`.
    """

    folder: object
    plain: bytes
    bodies: list
    port: int
    listened: tuple


@pytest.fixture(scope="module")
def exchange(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    (folder / "zoo").mkdir()
    (folder / "zoo" / "torch_small.py").write_text(TORCH_MODEL)
    records = str(write_records(folder / "all.recordio", 160))
    made = federated.init(
        str(folder / "h"),
        data=records,
        model_zoo=str(folder / "zoo"),
        model_def="torch_small",
        num_rounds=1,
    )
    connect(made)
    port = yaml.safe_load(made.aggregator.read_text())["connection"]["info"]["port"]
    tap = Tap(port)
    for path in made.parties:
        change(path, aggregator={"ip": "127.0.0.1", "port": tap.own_port})
    commands = Commands(tmp_path_factory.mktemp("logs"))
    os.environ["ELASTICDL_TEST_SECRET"] = SECRET
    try:
        aggregator = commands.start("aggregator", "aggregator", made.aggregator)
        # The tap hangs up as long as there is nobody behind it.
        log = "Parties can connect"
        commands.wait_until(lambda: log in commands.log("aggregator"), aggregator)
        parties = [commands.start(path.stem, "party", path) for path in made.parties]
        listened = seen_until_the_end(aggregator, *parties)
        assert commands.end_of(aggregator) == 0, commands.logs()
        assert len(rounds(made.aggregator.parent / "trained_model")) == 1
    finally:
        del os.environ["ELASTICDL_TEST_SECRET"]
        commands.end()
        tap.close()
    plain = b"\n".join(bytes(kept) for _, kept in tap.carried)
    return Exchange(folder, plain, list(bodies(tap.carried)), port, listened)


def bodies(carried):
    """Yield who spoke, the path asked for and the body, of each pair of directions."""
    for (_, requests), (_, responses) in zip(carried[::2], carried[1::2], strict=True):
        paths = []
        server = h11.Connection(h11.SERVER)
        for path, body in messages(server, bytes(requests)):
            paths.append(path)
            yield "party", path, body
        at = 0
        for path in paths:
            client = h11.Connection(h11.CLIENT)
            client.send(
                h11.Request(
                    method="POST", target=path, headers=[("host", "x"), ("content-length", "0")]
                )
            )
            client.send(h11.EndOfMessage())
            client.receive_data(bytes(responses[at:]))
            body = b""
            while not isinstance(event := client.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                    return
                body += bytes(event.data) if isinstance(event, h11.Data) else b""
            at = len(responses) - len(client.trailing_data[0])
            yield "aggregator", path, body


def messages(connection, plain):
    """Yield the path and the body of each request of a connection."""
    connection.receive_data(plain)
    path, body = "", b""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            path, body = event.target.decode(), b""
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            yield path, body
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is not h11.DONE:
                # It asked for the end of the connection.
                return
            connection.start_next_cycle()
        else:
            return


@pytest.fixture(scope="module")
def objects(exchange):
    """Return the type and the content of each object that was sent, by its id."""
    from flwr.proto import message_pb2

    found = {}
    for who, path, body in exchange.bodies:
        content = b""
        if path.endswith("push-object") and who == "party":
            content = message_pb2.PushObjectRequest.FromString(body).object_content
        elif path.endswith("pull-object") and who == "aggregator":
            content = message_pb2.PullObjectResponse.FromString(body).object_content
        if content:
            head, _, inner = content.partition(b"\0")
            found[content] = (head.decode().split(" ")[0], inner)
    return list(found.values())


def told(objects):
    """Return the plans of arrays and the facts of all messages."""
    from flwr.proto import recorddict_pb2

    for kind, inner in objects:
        if kind == "ConfigRecord":
            record = recorddict_pb2.ConfigRecord.FromString(inner)
            assert [item.key for item in record.items] == ["json"]
            yield json.loads(record.items[0].value.string)


def contains_pickle(content):
    """Say whether a pickle, whole up to its end, stands anywhere in the bytes.

    Its first two bytes alone prove nothing: a number of a protocol buffer may have them.
    """
    for start in re.finditer(rb"\x80[\x02-\x05]", content):
        try:
            for _ in pickletools.genops(content[start.start() :]):
                pass
        except ValueError:
            continue
        return True
    return False


def words(value):
    """Return all texts in a JSON value."""
    if isinstance(value, dict):
        return [*value, *(word for each in value.values() for word in words(each))]
    if isinstance(value, list):
        return [word for each in value for word in words(each)]
    return [value] if isinstance(value, str) else []


def test_the_recording_contains_the_model(exchange, objects) -> None:
    """Otherwise the tests below would also pass with an empty recording."""
    speakers = {who for who, _, _ in exchange.bodies}
    names = {entry[0] for plan, _ in told(objects) for entry in plan}

    assert speakers == {"party", "aggregator"}
    assert any("weight" in name for name in names)


def test_only_arrays_and_facts_are_sent(objects) -> None:
    assert {kind for kind, _ in objects} == {
        "Message", "RecordDict", "ArrayRecord", "Array", "ArrayChunk", "ConfigRecord"
    }  # fmt: skip


def test_arrays_contain_nothing_but_their_numbers(objects) -> None:
    """As many bytes are sent as the plans of the arrays say."""
    planned = {
        sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for _, dtype, shape in plan)
        for plan, _ in told(objects)
    }
    sent = {len(inner) for kind, inner in objects if kind == "ArrayChunk"}

    assert all(np.dtype(dtype).kind in "biuf" for plan, _ in told(objects) for _, dtype, _ in plan)
    assert sent <= planned
    assert max(sent) > 100


def test_no_pickle_is_sent(objects) -> None:
    for kind, inner in objects:
        if kind != "ArrayChunk":
            assert not contains_pickle(inner), kind
            assert not re.search(rb"pickle|numpy\.|torch\.", inner), kind


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_within_a_message_is_detected(protocol) -> None:
    assert contains_pickle(b"\n|\x80\x02" + pickle.dumps({"lr": 0.1}, protocol) + b"\x10\x01")


def test_facts_contain_no_path_or_long_text(exchange, objects) -> None:
    for plan, facts in told(objects):
        for word in words([plan, facts]):
            assert not re.search(r"(^|\s)[/~.]", word), word
            assert len(word) < LONGEST_WORD, word
    for path in (str(exchange.folder), f"{Path.home()}/", "/home/", "site-packages"):
        assert path.encode() not in exchange.plain, path


def test_no_environment_variable_is_sent(exchange) -> None:
    assert SECRET.encode() not in exchange.plain
    for name in ("ELASTICDL_TEST_SECRET", "PYTHONPATH", "VIRTUAL_ENV"):
        assert name.encode() not in exchange.plain
        if len(value := os.environ.get(name, "")) > 3:
            assert value.encode() not in exchange.plain


def test_no_row_of_the_data_is_sent(exchange) -> None:
    rows = [
        np.asarray(record["x"], "float32")
        for record in RecordIOSource([str(exchange.folder / "all.recordio")]).read_records(
            0, 160, None
        )
    ]

    assert len(rows) == 160
    for row in rows:
        assert row.tobytes() not in exchange.plain
        assert row.astype("float64").tobytes() not in exchange.plain
        assert f"{row[0]:.6f}".encode() not in exchange.plain


def test_only_the_aggregator_opens_a_port(exchange) -> None:
    ports, open_sockets, sockets = exchange.listened

    assert (ports, open_sockets) == ({exchange.port}, set())
    assert sorted(path.rpartition("/")[2] for path in sockets) == SOCKETS_OF_COMMANDS
