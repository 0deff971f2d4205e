"""The party's process, asked over its socket."""

import logging
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from elasticdl.engines.federated.flower.client_daemon import ClientDaemon
from elasticdl.engines.federated.flower.protocol_constants import JOIN, TASK, UNANSWERED
from elasticdl.engines.federated.protocol import wire
from elasticdl.engines.federated.protocol.wire import Frame


@pytest.fixture
def path():
    # The path of a socket must be short.
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, "s")


@pytest.fixture
def daemon(path):
    """Return a function that starts a client daemon."""
    running = []

    def start(answer):
        one = ClientDaemon(path, "north", answer)
        one.__enter__()
        thread = threading.Thread(target=one.run)
        thread.start()
        running.append((one, thread))

    yield start
    for one, thread in running:
        one.__exit__(None, None, None)
        thread.join()


def ask(path, frame):
    with wire.connect(path, 20) as stream:
        wire.send(stream, frame)
        return wire.receive(stream)


def test_a_request_is_answered(path, daemon):
    daemon(lambda arrays, facts: ({"w": arrays["w"] * 2}, {"round": facts["round"]}))

    answer = ask(path, Frame(TASK, {"round": 3}, {"w": np.ones(2)}))

    assert answer.facts == {"round": 3}
    assert answer.arrays["w"].tolist() == [2, 2]


def test_a_party_reports_its_name_while_training(path, daemon):
    busy, done = threading.Event(), threading.Event()

    def answer(arrays, facts):
        busy.set()
        done.wait(20)
        return {}, {}

    daemon(answer)
    with wire.connect(path) as stream:
        wire.send(stream, Frame(TASK))
        busy.wait(20)

        assert ask(path, Frame(JOIN)).facts == {"name": "north"}
        done.set()


def test_requests_are_answered_one_at_a_time(path, daemon):
    inside, most = [], []

    def answer(arrays, facts):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.05)
        inside.pop()
        return {}, {}

    daemon(answer)
    threads = [threading.Thread(target=ask, args=(path, Frame(TASK))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == [1, 1, 1, 1]


def test_exception_messages_are_not_sent(path, daemon, caplog):
    def answer(arrays, facts):
        raise ValueError("patient 17 has 3 arms")

    daemon(answer)
    with caplog.at_level(logging.ERROR):
        facts = ask(path, Frame(TASK)).facts

    assert facts == {UNANSWERED: "it raised ValueError; see its log for the message"}
    assert "patient 17 has 3 arms" in caplog.text


def test_an_answer_that_cannot_be_sent_is_reported(path, daemon):
    daemon(lambda arrays, facts: ({"w": np.array(["text"])}, {}))

    assert ask(path, Frame(TASK)).facts == {UNANSWERED: "its reply could not be sent"}


def test_requests_of_disconnected_clients_are_not_executed(path, daemon):
    started, go_on, asked = threading.Event(), threading.Event(), []

    def answer(arrays, facts):
        asked.append(facts["n"])
        started.set()
        go_on.wait(20)
        return {}, {}

    daemon(answer)
    first = wire.connect(path)
    wire.send(first, Frame(TASK, {"n": 1}))
    started.wait(20)
    with wire.connect(path) as gone:
        wire.send(gone, Frame(TASK, {"n": 2}))
    time.sleep(0.3)
    go_on.set()
    ask(path, Frame(TASK, {"n": 3}))
    first.close()

    assert asked == [1, 3]


def test_invalid_input_does_not_disturb_the_next_request(path, daemon):
    daemon(lambda arrays, facts: ({}, {"fine": True}))
    with wire.connect(path) as stream:
        stream.sendall(b"GET / HTTP/1.1\r\n\r\n")

    assert ask(path, Frame(TASK)).facts == {"fine": True}


def test_the_socket_is_removed_with_the_party(path):
    with ClientDaemon(path, "north", lambda arrays, facts: ({}, {})):
        assert path.exists()

    assert not path.exists()
