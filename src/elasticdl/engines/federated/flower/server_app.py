"""The ServerApp: passes on what the aggregator's own process says, and what parties answer.

    aggregator's process         here
    PUSH kind, letters, arrays   -->  push_messages: a letter has a number, a node and facts
    FORGET numbers               -->  no longer asked for
    NODES                        <--  get_node_ids, looked at twice a second
    ANSWER number, facts, arrays <--  pull_messages, asked for often while any is missing
    FAILED number, reason        <--  a party's error, or an answer that is none
    LOST number                  <--  Flower has the message no more, or not the party

It decides nothing and remembers only which messages are out. If it is killed, the aggregator
starts another run and sends again what is still wanted. It ends when the aggregator hangs up.

Flower's own `send_and_receive` would sleep 3 s between two looks. And one answer that it cannot
read takes all down that were fetched with it: they are asked for again then, and fetched one by one
from there on, so that it is known whose it is.

Callers: Flower, by the name in `fab.py`.
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

from elasticdl.engines.federated import wire
from elasticdl.engines.federated.flower.records import (
    RecordError,
    from_record,
    to_record,
    with_facts,
)
from elasticdl.engines.federated.flower.words import (
    AGGREGATOR_SOCKET,
    ANSWER,
    FAILED,
    FORGET,
    LOST,
    NODES,
    PUSH,
)
from elasticdl.engines.federated.wire import Frame

_POLL_S = 0.1
_NODES_S = 0.5
# Said again now and then, so that what was not done about it is done.
_SAY_AGAIN_S = 5.0

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Pass on until the aggregator hangs up."""
    del context
    with wire.connect(Path(os.environ[AGGREGATOR_SOCKET])) as stream:
        relay(grid, stream)


def relay(grid: Grid, stream: socket.socket) -> None:
    """Pass messages between a grid and a stream until the stream's other end is closed."""
    _Relay(grid, stream).run()


class _Relay:
    def __init__(self, grid: Grid, stream: socket.socket) -> None:
        self._grid = grid
        self._stream = stream
        # By Flower's number of a message: the aggregator's, and where it went.
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
        # Made once: what all parties are sent is hashed once, and Flower stores it once.
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
        # Of a message that Flower does not take there is None, of all none at all.
        numbers += [""] * (len(letters) - len(numbers))
        for letter, number in zip(letters, numbers, strict=True):
            if number:
                self._out[number] = (letter["id"], letter["node"])
            else:
                self._fail(letter["id"], "Flower did not take the message")

    def _pull(self) -> None:
        for message in self._pulled():
            id_, node = self._out.pop(message.metadata.reply_to_message_id, (None, None))
            if id_ is None:
                continue
            if message.has_error():
                # What the superlink says in a node's place: it has gone, or the message is too old.
                if message.metadata.src_node_id != node:
                    wire.send(self._stream, Frame(LOST, {"id": id_}))
                else:
                    self._fail(id_, str(message.error.reason))
                continue
            try:
                arrays, facts = from_record(message.content)
                wire.send(self._stream, Frame(ANSWER, {"id": id_, "facts": facts}, arrays))
            except (RecordError, wire.WireError) as error:
                self._fail(id_, f"its answer was not understood: {error}")

    def _pulled(self) -> Iterator[Message]:
        """Yield what has come; a message that Flower cannot read is its sender's failure."""
        outstanding = list(self._out)
        for numbers in [[one] for one in outstanding] if self._one_by_one else [outstanding]:
            try:
                yield from list(self._grid.pull_messages(numbers))
            except httpx.HTTPError:
                # The superlink is gone.
                raise
            except Exception as error:  # noqa: BLE001 - whatever Flower says of a stranger's bytes
                if not self._one_by_one and len(numbers) > 1:
                    self._one_by_one = True
                    for number in numbers:
                        wire.send(self._stream, Frame(LOST, {"id": self._out.pop(number)[0]}))
                    return
                id_, _ = self._out.pop(numbers[0])
                self._fail(id_, f"its answer was not understood ({type(error).__name__})")

    def _fail(self, id_: int, reason: str) -> None:
        wire.send(self._stream, Frame(FAILED, {"id": id_, "reason": reason}))
