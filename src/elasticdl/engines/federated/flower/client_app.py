"""The ClientApp: forwards messages to the party's own process, and returns its answers.

Flower starts a new process for every message. Importing a framework there would take seconds, so
training runs in a long-running process (`client_daemon.py`), and this one imports only Flower
and NumPy.

If the party's own process does not answer, this app sends the reason as its reply, so that the
aggregator does not wait.

Callers: Flower, by the name in `flower_app.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from elasticdl.engines.federated.flower.protocol_constants import (
    JOIN,
    PARTY_SOCKET,
    TASK,
    UNANSWERED,
)
from elasticdl.engines.federated.flower.records import from_record, to_record
from elasticdl.engines.federated.protocol import wire
from elasticdl.engines.federated.protocol.wire import Frame

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Forward the aggregator's request to the party's process, and return the answer."""
    del context
    return _forward(message, TASK)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Forward a request for the party's name to the party's process, and return the answer."""
    del context
    return _forward(message, JOIN)


def _forward(message: Message, kind: str) -> Message:
    arrays, facts = from_record(message.content)
    # After the message's lifetime no process waits for the answer, and the next message waits for
    # this one. The time counts from here, because the timestamp is from another machine's clock.
    try:
        with wire.connect(Path(os.environ[PARTY_SOCKET]), message.metadata.ttl) as stream:
            wire.send(stream, Frame(kind, facts, arrays))
            answer = wire.receive(stream)
    except TimeoutError:
        answer = _unanswered("its process was busy until the timeout")
    except (EOFError, OSError):
        answer = _unanswered(
            "its Flower node is connected, but its training process is not running or has died; "
            "run `elasticdl federated party` there again"
        )
    reply = Message(to_record(answer.arrays, answer.facts), reply_to=message)
    # Flower would use this machine's clock for the timestamp, and the superlink would refuse the
    # reply as expired if that clock is ahead by more than the request's lifetime.
    reply.metadata.created_at = message.metadata.created_at
    reply.metadata.ttl = message.metadata.ttl
    return reply


def _unanswered(why: str) -> Frame:
    return Frame("", {UNANSWERED: why})
