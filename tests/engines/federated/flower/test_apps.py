"""The two apps without Flower's processes: a grid that is a few lists, a party that is a thread."""

import socket
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, Metadata, RecordDict

from elasticdl.engines.federated.flower import client_app, server_app
from elasticdl.engines.federated.flower.client_daemon import ClientDaemon
from elasticdl.engines.federated.flower.protocol_constants import (
    ANSWER,
    FAILED,
    FORGET,
    JOIN,
    LOST,
    NODES,
    PARTY_SOCKET,
    PUSH,
    TASK,
    UNANSWERED,
)
from elasticdl.engines.federated.flower.records import RecordError, from_record, to_record
from elasticdl.engines.federated.protocol import wire
from elasticdl.engines.federated.protocol.wire import Frame

SUPERLINK = 1


def message(content=None, kind=TASK, number="m1", node=7, ttl=20.0, created_at=None, reply_to=""):
    """Return a message as it arrives; outside of its processes Flower makes none."""
    src, dst = (node, SUPERLINK) if reply_to else (SUPERLINK, node)
    metadata = Metadata(
        run_id=1,
        message_id=number,
        src_node_id=src,
        dst_node_id=dst,
        reply_to_message_id=reply_to,
        group_id="",
        created_at=time.time() if created_at is None else created_at,
        ttl=ttl,
        message_type=kind,
    )
    return Message(content=to_record({}, {}) if content is None else content, metadata=metadata)


# --- records ----------------------------------------------------------------------------------


def test_arrays_and_facts_survive_a_round_trip():
    sent = {"a/b": np.float32([[1, 2]]), "n": np.array(3), "z": np.zeros((0, 2))}

    arrays, facts = from_record(to_record(sent, {"round": 1, "x": [None, "ä"]}))

    assert facts == {"round": 1, "x": [None, "ä"]}
    assert {name: (one.dtype, one.tolist()) for name, one in arrays.items()} == {
        name: (one.dtype, one.tolist()) for name, one in sent.items()
    }


def hostile(content=b"12345678", json='[[["w", "<f8", [1]]], {}]'):
    """Return a record whose parts have been replaced."""
    array = Array("uint8", (len(content),), "elasticdl", content)
    return RecordDict(
        {"arrays": ArrayRecord({"bytes": array}), "facts": ConfigRecord({"json": json})}
    )


def test_a_valid_record_is_read():
    assert from_record(hostile())[0]["w"].shape == (1,)


@pytest.mark.parametrize(
    "record",
    [
        RecordDict(),
        hostile(json="[1]"),
        hostile(json="{"),
        hostile(json="[" * 100_000),
        hostile(json='[[["w", "<f8", [1]]], []]'),
        hostile(json='[[["w", "O", [1]]], {}]'),
        hostile(json='[[["w", "<f8", [100000000000000]]], {}]'),
        hostile(json='[[["w", "<f8", [-1]]], {}]'),
        hostile(json='["w", {}]'),
        hostile(b"", f'[[["w", "<f8", [0, {2**70}]]], {{}}]'),
        hostile(b"", f'[[["w", "<f8", [0, {"9" * 400}]]], {{}}]'),
        hostile(json='[[["w", "<f4", [1]], ["w", "<f4", [1]]], {}]'),
        hostile(json="[null, {}]"),
        hostile(content=b"\x80\x04N."),
    ],
    ids=[
        *("nothing", "list", "no json", "deep", "facts", "objects", "huge", "negative", "text"),
        *("huge beside none", "400 digits beside none", "twice"),
        *("null", "pickle"),
    ],
)
def test_a_malicious_record_is_refused(record):
    with pytest.raises(RecordError):
        from_record(record)


# --- the client app ---------------------------------------------------------------------------


@pytest.fixture
def path(monkeypatch):
    # The path of a socket must be short.
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv(PARTY_SOCKET, f"{folder}/s")
        yield Path(folder, "s")


@pytest.fixture
def party(path):
    with ClientDaemon(path, "north", lambda arrays, facts: (arrays, {"got": dict(facts)})) as one:
        thread = threading.Thread(target=one.run)
        thread.start()
        yield
        one.stop()
        thread.join()


def test_a_request_is_relayed_to_the_party_process_and_answered(party):
    request = message(to_record({"w": np.ones(2)}, {"round": 1}))

    arrays, facts = from_record(client_app.app(request, None).content)

    assert facts == {"got": {"round": 1}}
    assert arrays["w"].tolist() == [1, 1]


def test_a_party_is_requested_to_report_its_name(party):
    answer = client_app.app(message(kind=JOIN), None)

    assert from_record(answer.content)[1] == {"name": "north"}


@pytest.mark.parametrize("skew_s", [-200.0, 200.0])
def test_an_answer_has_timestamps_of_the_aggregators_clock(party, skew_s):
    """Otherwise a party whose clock is ahead could never answer within a short time."""
    request = message(created_at=time.time() + skew_s, ttl=10.0)

    stamp = client_app.app(request, None).metadata

    assert (stamp.created_at, stamp.ttl) == (request.metadata.created_at, 10.0)


def test_a_party_without_its_process_is_reported(path):
    facts = from_record(client_app.app(message(), None).content)[1]

    assert "its training process is not running" in facts[UNANSWERED]


def hang_up(listener):
    stream, _ = listener.accept()
    with stream:
        wire.receive(stream)


def test_a_party_that_dies_while_answering_is_reported(path):
    with wire.listen(path) as listener:
        threading.Thread(target=hang_up, args=(listener,)).start()

        facts = from_record(client_app.app(message(), None).content)[1]

    assert "has died" in facts[UNANSWERED]


def test_a_busy_party_is_given_up_after_the_request_expires(path):
    with wire.listen(path):
        facts = from_record(client_app.app(message(ttl=0.2), None).content)[1]

    assert facts == {UNANSWERED: "its process was busy until the timeout"}


# --- the server app ---------------------------------------------------------------------------


class Grid:
    """Takes messages and hands out answers that the test has made."""

    def __init__(self):
        self.nodes = [7, 8]
        self.pushed = []
        self.answers = []
        self.asked_for = set()
        self.unreadable = set()

    def get_node_ids(self):
        return self.nodes

    def push_messages(self, messages):
        self.pushed += messages
        return [
            f"m{one.metadata.dst_node_id}" if one.metadata.dst_node_id else None for one in messages
        ]

    def pull_messages(self, numbers):
        self.asked_for = set(numbers)
        if self.unreadable & self.asked_for:
            # As Flower's: what it fetched with it is gone as well.
            self.answers = [
                one for one in self.answers if one.metadata.reply_to_message_id not in numbers
            ]
            raise ValueError("Object type not found")
        here = [one for one in self.answers if one.metadata.reply_to_message_id in self.asked_for]
        self.answers = [one for one in self.answers if one not in here]
        return here


@pytest.fixture
def relay(monkeypatch):
    """Return a grid and the aggregator's end of a relay that runs."""
    monkeypatch.setattr("flwr.supercore.task_identity.TaskIdentity._run_id", 1, raising=False)
    monkeypatch.setattr("flwr.supercore.task_identity.TaskIdentity._node_id", 1, raising=False)
    monkeypatch.setattr("flwr.supercore.task_identity.TaskIdentity._task_id", 1, raising=False)
    grid = Grid()
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    thread = threading.Thread(target=server_app.relay, args=(grid, theirs))
    thread.start()
    assert wire.receive(ours).facts == {"nodes": [7, 8]}
    yield grid, ours
    ours.close()
    thread.join(20)
    assert not thread.is_alive()
    theirs.close()


def push(stream, *letters, **arrays):
    facts = {
        "kind": TASK,
        "ttl_s": 5.0,
        "letters": [{"id": id_, "node": node, "facts": {"n": id_}} for id_, node in letters],
    }
    wire.send(stream, Frame(PUSH, facts, arrays))


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_messages_go_to_their_nodes_and_answers_return(relay):
    grid, stream = relay
    push(stream, (1, 7), (2, 8), w=np.ones(2))
    wait_until(lambda: len(grid.pushed) == 2)
    assert [(one.metadata.dst_node_id, one.metadata.ttl) for one in grid.pushed] == [(7, 5), (8, 5)]
    assert [from_record(one.content)[1] for one in grid.pushed] == [{"n": 1}, {"n": 2}]

    grid.answers.append(message(to_record({"w": np.zeros(1)}, {"a": 1}), node=8, reply_to="m8"))

    frame = wire.receive(stream)
    assert (frame.kind, frame.facts) == (ANSWER, {"id": 2, "facts": {"a": 1}})
    assert frame.arrays["w"].tolist() == [0]


def test_arrays_sent_to_all_nodes_are_one_object(relay):
    """So that Flower computes its hash once, and stores it once."""
    grid, stream = relay
    push(stream, (1, 7), (2, 8), w=np.ones(2))
    wait_until(lambda: len(grid.pushed) == 2)

    first, second = (one.content.array_records["arrays"] for one in grid.pushed)
    assert first is second


def error(reply_to, node):
    one = message(node=node, reply_to=reply_to)
    return Message(error=Error(0, "its reason"), metadata=one.metadata)


def test_an_error_of_the_party_is_reported_with_its_reason(relay):
    grid, stream = relay
    push(stream, (1, 7))
    grid.answers.append(error("m7", node=7))

    frame = wire.receive(stream)
    assert (frame.kind, frame.facts) == (FAILED, {"id": 1, "reason": "its reason"})


def test_a_superlink_error_means_that_the_message_is_lost(relay):
    grid, stream = relay
    push(stream, (1, 7))
    grid.answers.append(error("m7", node=SUPERLINK))

    frame = wire.receive(stream)
    assert (frame.kind, frame.facts) == (LOST, {"id": 1})


def test_an_invalid_answer_is_reported_without_ending_the_relay(relay):
    grid, stream = relay
    push(stream, (1, 7), (2, 8))
    grid.answers.append(message(RecordDict(), node=7, reply_to="m7"))
    assert "could not be decoded" in wire.receive(stream).facts["reason"]

    grid.answers.append(message(node=8, reply_to="m8"))

    assert wire.receive(stream).kind == ANSWER


def test_undecodable_bytes_are_a_failure_of_their_sender(relay):
    grid, stream = relay
    push(stream, (1, 7), (2, 8))
    wait_until(lambda: grid.asked_for == {"m7", "m8"})
    grid.answers.append(message(node=8, reply_to="m8"))
    grid.unreadable = {"m7"}
    # Whose they are is not known, and the other's answer may be lost.
    told = [wire.receive(stream), wire.receive(stream)]
    if told[0].kind == ANSWER:
        told.append(wire.receive(stream))
    assert {one.kind for one in told} <= {ANSWER, LOST, FAILED}

    push(stream, (1, 7), (2, 8))
    grid.answers.append(message(node=8, reply_to="m8"))

    frames = [wire.receive(stream) for _ in range(2)]
    assert {(one.kind, one.facts["id"]) for one in frames} == {(FAILED, 1), (ANSWER, 2)}
    reason = next(one.facts["reason"] for one in frames if one.kind == FAILED)
    assert reason == "its reply could not be decoded (ValueError)"


def test_forgotten_messages_are_not_requested(relay):
    grid, stream = relay
    push(stream, (1, 7), (2, 8))
    wait_until(lambda: grid.asked_for == {"m7", "m8"})

    wire.send(stream, Frame(FORGET, {"ids": [1]}))

    wait_until(lambda: grid.asked_for == {"m8"})


def test_changes_of_online_nodes_are_reported(relay):
    grid, stream = relay
    grid.nodes = [8]

    frame = wire.receive(stream)
    assert (frame.kind, frame.facts) == (NODES, {"nodes": [8]})
