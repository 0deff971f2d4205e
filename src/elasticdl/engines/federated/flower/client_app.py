"""The ClientApp: passes a message on to the party's own process, and its answer back.

Flower starts a new process for every message. Importing a framework there would cost it seconds, so
what trains is a process that stays (`resident.py`), and this one imports Flower and NumPy only.

A party whose own process does not answer says so itself, so the aggregator need not wait for it.

Callers: Flower, by the name in `fab.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from elasticdl.engines.federated import wire
from elasticdl.engines.federated.flower.records import from_record, to_record
from elasticdl.engines.federated.flower.words import JOIN, PARTY_SOCKET, TASK, UNANSWERED
from elasticdl.engines.federated.wire import Frame

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Pass on a request of the aggregator's."""
    del context
    return _forward(message, TASK)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Pass on the question for the party's name."""
    del context
    return _forward(message, JOIN)


def _forward(message: Message, kind: str) -> Message:
    arrays, facts = from_record(message.content)
    # After that nobody waits for the answer, and the next message waits for this process. It is
    # counted from here: the clock that the message was stamped by is another machine's.
    try:
        with wire.connect(Path(os.environ[PARTY_SOCKET]), message.metadata.ttl) as stream:
            wire.send(stream, Frame(kind, facts, arrays))
            answer = wire.receive(stream)
    except TimeoutError:
        answer = _unanswered("its process was busy until the time was over")
    except (EOFError, OSError):
        answer = _unanswered(
            "its Flower node is connected, but the process that trains is not running or has "
            "died; start `elasticdl federated party` there again"
        )
    reply = Message(to_record(answer.arrays, answer.facts), reply_to=message)
    # Flower would stamp it by this machine's clock, and the superlink refuse it as expired if that
    # clock is ahead by more than the request lives.
    reply.metadata.created_at = message.metadata.created_at
    reply.metadata.ttl = message.metadata.ttl
    return reply


def _unanswered(why: str) -> Frame:
    return Frame("", {UNANSWERED: why})
