"""The ServerApp: forwards messages between the aggregator's own process and the parties.

    aggregator's process         here
    PUSH kind, letters, arrays   -->  push_messages: a letter has a number, a node and facts
    FORGET numbers               -->  stop waiting for these answers
    NODES                        <--  get_node_ids, polled twice a second
    ANSWER number, facts, arrays <--  pull_messages, polled often while any is missing
    FAILED number, reason        <--  a party's error, or an invalid answer
    LOST number                  <--  Flower no longer has the message or the party

A letter is a message to one party, which is one node for Flower. The ServerApp makes no decisions
and only tracks which letters are unanswered. If it is killed, the aggregator starts another run and
resends the pending letters. It ends when the aggregator closes the connection.

Flower's own `send_and_receive` is not used because it sleeps 3 s between two polls. Also, one
answer that it cannot parse makes it fail for all answers fetched with it. In that case the letters
are sent again, and from then on answers are fetched one by one, to identify the sender.

Callers: Flower, by the name in `flower_app.py`.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from elasticdl.engines.federated.flower.protocol_constants import (
    AGGREGATOR_SOCKET,
    ANSWER,
    FAILED,
    FORGET,
    LOST,
    NODES,
    PUSH,
)
from elasticdl.engines.federated.flower.records import (
    RecordError,
    from_record,
    to_record,
    with_facts,
)
from elasticdl.engines.federated.protocol import wire
from elasticdl.engines.federated.protocol.wire import Frame

_POLL_S = 0.1
_NODES_S = 0.5
# The nodes are resent regularly, so that the aggregator resends letters that were lost.
_SAY_AGAIN_S = 5.0

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Entry point of the ServerApp, called by Flower.

    It forwards messages between the aggregator's socket and Flower's grid until the aggregator
    closes the socket.
    """
    del context
    with wire.connect(Path(os.environ[AGGREGATOR_SOCKET])) as stream:
        relay(grid, stream)


def relay(grid: Grid, stream: socket.socket) -> None:
    """Forward messages between the aggregator and the parties until the aggregator disconnects.

    Args:
        grid: Flower's connection to the parties.
        stream: Socket to the aggregator's process.
    """
    _Relay(grid, stream).run()


class _Relay:
    def __init__(self, grid: Grid, stream: socket.socket) -> None:
        self._grid = grid
        self._stream = stream
        # Flower's ID of an unanswered message -> the aggregator's number, and the node.
        self._out: dict[str, tuple[int, int]] = {}
        self._nodes: list[int] | None = None
        self._looked_s = self._said_s = 0.0
        self._one_by_one = False

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._stream, select.POLLIN)
        while True:
            self._look_for_nodes()
            if poll.poll(_POLL_S * 1000):
                try:
                    frame = wire.receive(self._stream)
                except EOFError:
                    return
                self._obey(frame)
            if self._out:
                self._pull()

    def _look_for_nodes(self) -> None:
        if time.monotonic() - self._looked_s < _NODES_S:
            return
        nodes = sorted(self._grid.get_node_ids())
        self._looked_s = time.monotonic()
        if nodes != self._nodes or self._looked_s - self._said_s > _SAY_AGAIN_S:
            self._nodes, self._said_s = nodes, self._looked_s
            wire.send(self._stream, Frame(NODES, {"nodes": nodes}))

    def _obey(self, frame: Frame) -> None:
        if frame.kind == FORGET:
            unwanted = set(frame.facts["ids"])
            self._out = {key: one for key, one in self._out.items() if one[0] not in unwanted}
        elif frame.kind == PUSH:
            self._push(frame)

    def _push(self, frame: Frame) -> None:
        letters = frame.facts["letters"]
        # One record for all parties: its arrays are hashed once, and Flower stores them once.
        record = to_record(frame.arrays, {})
        messages = [
            Message(
                with_facts(record, letter["facts"]),
                int(letter["node"]),
                str(frame.facts["kind"]),
                ttl=float(frame.facts["ttl_s"]),
            )
            for letter in letters
        ]
        numbers = list(self._grid.push_messages(messages))
        # Flower returns None for a message that it does not accept, and an empty list if it accepts
        # none.
        numbers += [""] * (len(letters) - len(numbers))
        for letter, number in zip(letters, numbers, strict=True):
            if number:
                self._out[number] = (letter["id"], letter["node"])
            else:
                self._fail(letter["id"], "Flower did not accept the message")

    def _pull(self) -> None:
        for message in self._pulled():
            id_, node = self._out.pop(message.metadata.reply_to_message_id, (None, None))
            if id_ is None:
                continue
            if message.has_error():
                # An error of the superlink, not the node: the node is gone or the message expired.
                if message.metadata.src_node_id != node:
                    wire.send(self._stream, Frame(LOST, {"id": id_}))
                else:
                    self._fail(id_, str(message.error.reason))
                continue
            try:
                arrays, facts = from_record(message.content)
                wire.send(self._stream, Frame(ANSWER, {"id": id_, "facts": facts}, arrays))
            except (RecordError, wire.WireError) as error:
                self._fail(id_, f"its reply could not be decoded: {error}")

    def _pulled(self) -> Iterator[Message]:
        """Yield the answers that have arrived.

        If Flower fails to parse one of several answers, it does not tell which. All pending letters
        are then reported as lost, so that they are sent again, and from then on answers are fetched
        one by one. An answer that cannot be parsed alone is reported as failed.
        """
        outstanding = list(self._out)
        for numbers in [[one] for one in outstanding] if self._one_by_one else [outstanding]:
            try:
                yield from list(self._grid.pull_messages(numbers))
            except httpx.HTTPError:
                # The superlink is gone, so this app ends.
                raise
            except Exception as error:  # noqa: BLE001 - Flower may raise anything on bytes from outside
                if not self._one_by_one and len(numbers) > 1:
                    self._one_by_one = True
                    for number in numbers:
                        wire.send(self._stream, Frame(LOST, {"id": self._out.pop(number)[0]}))
                    return
                id_, _ = self._out.pop(numbers[0])
                self._fail(id_, f"its reply could not be decoded ({type(error).__name__})")

    def _fail(self, id_: int, reason: str) -> None:
        wire.send(self._stream, Frame(FAILED, {"id": id_, "reason": reason}))
