"""Message exchange with the parties: sends and receives arrays and JSON values (facts).

    ask(requests, 10 s)                                             the caller's thread
       |  pending messages ("letters")     ^ answers, as they arrive
       v                                   |
    outbox --> writer --socket--> server_app --socket--> reader     writer, reader: two threads

A letter is a message to one party that is not answered yet. The aggregator's process survives the
death of any Flower process. A dead ServerApp is replaced by a new run, and all unanswered letters
are sent again; a party gives the same answer to a repeated request. Timeouts are measured in this
process, so that delays inside Flower cannot extend them.

Callers: `parties.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from elasticdl.engines.federated.flower.membership import Membership
from elasticdl.engines.federated.flower.protocol_constants import (
    AGGREGATOR_SOCKET,
    FORGET,
    JOIN,
    LOST,
    NODES,
    PUSH,
    TAKEN,
    TASK,
    UNANSWERED,
)
from elasticdl.engines.federated.protocol import wire
from elasticdl.engines.federated.protocol.wire import Arrays, Facts, Frame
from elasticdl.errors import TrainingError
from elasticdl.scratch import TemporaryFolder

if TYPE_CHECKING:
    import numpy as np

    from elasticdl.engines.federated.flower.superlink import Superlink

Parts: TypeAlias = tuple[Arrays, Facts]

_CONNECT_S = 60.0
_ACCEPT_S = 0.2
_JOIN_S = 60.0
# Flower's own limit.
_MAX_TTL_S = 12 * 3600.0
_MAX_FAILURES = 3

_log = logging.getLogger("elasticdl")


@dataclass(frozen=True, eq=False)
class _PendingMessage:
    """A message to a party that has not been answered yet.

    Attributes:
        party: Name of the party; for a new node without a name, the number of the node.
        kind: `TASK` for a request of the aggregator, `JOIN` to ask a new node for its name.
        arrays: The arrays of the message.
        facts: The JSON values of the message.
        deadline_s: When to stop waiting for the answer, by the monotonic clock.
        inbox: Queue in which the caller of `ask` waits for the answer; None for `JOIN`.
    """

    party: str
    kind: str
    arrays: Arrays
    facts: Facts
    deadline_s: float
    inbox: queue.SimpleQueue[tuple[str, Arrays, Facts]] | None = None


class Exchange:
    """Sends messages to the parties through Flower, and collects their answers.

    A context manager: it starts Flower on entry and ends it on exit. It restarts a ServerApp that
    died, and then sends the unanswered messages again.

    Args:
        superlink: The superlink; it is started and ended here.

    Raises:
        TrainingError: Flower does not start.
    """

    def __init__(self, superlink: Superlink) -> None:
        self._superlink = superlink
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._membership = Membership()
        self._letters: dict[int, _PendingMessage] = {}
        # Letter -> the node that it was sent to, in the current run.
        self._sent: dict[int, int] = {}
        self._numbers = itertools.count(1)
        self._outbox: queue.SimpleQueue[Frame | None] | None = None
        self._closing = threading.Event()
        self._broken: TrainingError | None = None

    def __enter__(self) -> Self:
        # A temporary folder, because the path of a socket is limited to 107 bytes.
        self._folder = TemporaryFolder()
        path = self._folder.path / "aggregator"
        self._listener = wire.listen(path)
        self._listener.settimeout(_ACCEPT_S)
        try:
            self._superlink.start(**{AGGREGATOR_SOCKET: str(path)})
        except BaseException:
            self._listener.close()
            self._folder.cleanup()
            raise
        self._membership = Membership(registered=dict(self._superlink.names))
        self._thread = threading.Thread(target=self._serve, name="parties", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._closing.set()
        self._thread.join()
        self._superlink.close()
        self._listener.close()
        self._folder.cleanup()

    @property
    def address(self) -> str:
        """HOST:PORT that parties connect to."""
        return self._superlink.address

    def here(self) -> Sequence[str]:
        """Return the names of the parties that are connected, as far as Flower knows.

        Flower notices at once that a party leaves, and within a minute that one died.

        Raises:
            TrainingError: Flower could not be kept running.
        """
        with self._lock:
            self._check()
            return sorted(self._membership.nodes)

    def wait_for(self, num_parties: int, timeout_s: float) -> Sequence[str]:
        """Wait at most `timeout_s` until `num_parties` are connected; return the connected ones.

        Raises:
            TrainingError: Flower could not be kept running.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._broken or len(self._membership.nodes) >= num_parties, timeout_s
            )
        return self.here()

    def ask(
        self,
        requests: Mapping[str, Parts],
        timeout_s: float | None,
        check: Callable[[], None] = lambda: None,
    ) -> Iterator[tuple[str, dict[str, np.ndarray[Any, Any]], dict[str, Any]]]:
        """Send messages to parties, and yield their answers as they arrive.

        Args:
            requests: Party -> arrays and values to send. A party that is not connected receives
                them when it connects, if that is before the timeout.
            timeout_s: How long to wait for answers. None: wait until all have arrived.
            check: Called each second while waiting; an exception that it raises ends the wait and
                is passed on.

        Yields:
            A party's name, and the arrays and values of its answer. If `unanswered` is the only
            value, it states why there is no answer. Nothing is yielded for a party that does
            not answer in time.

        Raises:
            TrainingError: Flower could not be kept running.
        """
        inbox: queue.SimpleQueue[tuple[str, Arrays, Facts]] = queue.SimpleQueue()
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        numbers = []
        with self._lock:
            self._check()
            for party, (arrays, facts) in requests.items():
                number = next(self._numbers)
                self._letters[number] = _PendingMessage(
                    party, TASK, arrays, facts, deadline_s, inbox
                )
                numbers.append(number)
            self._post()
        return self._answers(inbox, numbers, deadline_s, check)

    def _answers(
        self,
        inbox: queue.SimpleQueue[tuple[str, Arrays, Facts]],
        numbers: Sequence[int],
        deadline_s: float,
        check: Callable[[], None],
    ) -> Iterator[tuple[str, dict[str, np.ndarray[Any, Any]], dict[str, Any]]]:
        try:
            for _ in numbers:
                while True:
                    check()
                    remaining_s = deadline_s - time.monotonic()
                    if remaining_s <= 0:
                        return
                    with contextlib.suppress(queue.Empty):
                        # Wait at most a second, to notice if Flower has failed.
                        party, arrays, facts = inbox.get(timeout=min(remaining_s, 1.0))
                        yield party, dict(arrays), dict(facts)
                        break
                    with self._lock:
                        self._check()
        finally:
            self._forget(numbers)

    def _check(self) -> None:
        if self._broken is not None:
            raise TrainingError(str(self._broken))

    # --- letters; the lock is held -----------------------------------------------------------

    def _post(self) -> None:
        """Pass the pending messages for connected parties to the ServerApp.

        Messages that the current ServerApp has already received are not passed again.
        """
        if self._outbox is None:
            return
        nodes = self._membership.nodes
        batches: dict[tuple[Any, ...], list[tuple[int, int, _PendingMessage]]] = {}
        for number, letter in self._letters.items():
            node = int(letter.party) if letter.kind == JOIN else nodes.get(letter.party)
            if node is None or number in self._sent:
                continue
            self._sent[number] = node
            # Arrays that all parties receive are sent over the socket once, and stored once.
            same = tuple((name, id(array)) for name, array in letter.arrays.items())
            key = (letter.kind, letter.deadline_s, same)
            batches.setdefault(key, []).append((number, node, letter))
        for batch in batches.values():
            first = batch[0][2]
            facts = {
                "kind": first.kind,
                # Flower discards a message that has not been fetched by then.
                "ttl_s": min(max(first.deadline_s - time.monotonic(), 1.0), _MAX_TTL_S),
                "letters": [
                    {"id": number, "node": node, "facts": dict(letter.facts)}
                    for number, node, letter in batch
                ],
            }
            self._outbox.put(Frame(PUSH, facts, first.arrays))

    def _forget(self, numbers: Iterable[int]) -> None:
        with self._lock:
            gone = [number for number in numbers if self._letters.pop(number, None)]
            sent = [number for number in gone if self._sent.pop(number, None) is not None]
            if sent and self._outbox is not None:
                self._outbox.put(Frame(FORGET, {"ids": sent}))

    def _seen(self, nodes: Sequence[int]) -> None:
        """Process a list of nodes from the ServerApp: record that these are online.

        New nodes are asked for the names of their parties.
        """
        before = self._membership
        self._membership = before.with_online(nodes)
        now_s = time.monotonic()
        asked = {
            int(one.party): number
            for number, one in self._letters.items()
            if one.kind == JOIN and one.deadline_s > now_s
        }
        for number in [n for n, one in self._letters.items() if one.kind == JOIN]:
            if number not in asked.values():
                del self._letters[number]
        for node in self._membership.unnamed_nodes - asked.keys():
            letter = _PendingMessage(str(node), JOIN, {}, {}, time.monotonic() + _JOIN_S)
            self._letters[next(self._numbers)] = letter
        self._log_changes(before)
        self._post()

    def _log_changes(self, before: Membership) -> None:
        for name in sorted(self._membership.nodes.keys() - before.nodes.keys()):
            _log.info("Party %r connected.", name)
        for name in sorted(before.nodes.keys() - self._membership.nodes.keys()):
            _log.warning("Party %r disconnected.", name)
        for node in self._membership.refused.keys() - before.refused.keys():
            name = self._membership.refused[node]
            _log.warning(
                "A second party with the name %r is left out: give each party a unique name "
                "(connection.info.id). (If it is the same party after a crash, it is accepted "
                "within a minute.)",
                name,
            )
            # The party must be informed too, because for Flower it is connected.
            letter = _PendingMessage(str(node), JOIN, {}, {TAKEN: name}, time.monotonic() + _JOIN_S)
            self._letters[next(self._numbers)] = letter
        self._changed.notify_all()

    # --- the ServerApp's other end --------------------------------------------------------------

    def _serve(self) -> None:
        """Loop of a thread: keep a ServerApp running, and exchange messages with it."""
        failures = 0
        while not self._closing.is_set():
            try:
                stream = self._accept(self._superlink.start_run())
            except TrainingError as error:
                failures += 1
                _log.warning("%s", error)
                if failures == _MAX_FAILURES:
                    with self._changed:
                        self._broken = error
                        self._changed.notify_all()
                    return
            else:
                if stream is None:
                    return
                failures = 0
                self._listen(stream)
                if not self._closing.is_set():
                    _log.warning("Flower's ServerApp ended; starting a new one.")

    def _accept(self, run: str) -> socket.socket | None:
        """Wait for the ServerApp of a run to connect; None if this exchange is being closed.

        Raises:
            TrainingError: The ServerApp does not connect in time.
        """
        deadline_s = time.monotonic() + _CONNECT_S
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError):
                stream, _ = self._listener.accept()
                stream.settimeout(None)
                return stream
            if time.monotonic() > deadline_s:
                status, details = self._superlink.run_status(run)
                raise TrainingError(
                    f"Flower's ServerApp did not start within {_CONNECT_S:.0f} s: {status} "
                    f"{details}. See {self._superlink.folder / 'superlink.log'}."
                )
        return None

    def _listen(self, stream: socket.socket) -> None:
        """Exchange messages with the ServerApp until its connection is closed."""
        outbox: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        writer = threading.Thread(
            target=_write, args=(stream, outbox), name="to Flower", daemon=True
        )
        writer.start()
        with self._lock:
            self._outbox = outbox
            self._sent = {}
            self._post()
        try:
            poll = select.poll()
            poll.register(stream, select.POLLIN)
            while not self._closing.is_set():
                if poll.poll(_ACCEPT_S * 1000):
                    self._read(wire.receive(stream))
        except (EOFError, OSError, wire.WireError):
            return
        finally:
            with self._lock:
                self._outbox = None
            outbox.put(None)
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)
            writer.join()
            stream.close()

    def _read(self, frame: Frame) -> None:
        with self._lock:
            if frame.kind == NODES:
                self._seen(frame.facts["nodes"])
                return
            number = frame.facts["id"]
            if frame.kind == LOST:
                # It is sent again when the ServerApp next reports the connected nodes.
                self._sent.pop(number, None)
                return
            letter = self._letters.pop(number, None)
            self._sent.pop(number, None)
            if letter is None:
                # The answer is late, or another run's ServerApp has already delivered one.
                return
            facts = frame.facts.get("facts", {UNANSWERED: frame.facts.get("reason")})
            if letter.inbox is not None:
                letter.inbox.put((letter.party, frame.arrays, facts))
            elif isinstance(facts.get("name"), str):
                before = self._membership
                self._membership = before.with_name(int(letter.party), facts["name"])
                self._log_changes(before)
                self._post()
            else:
                _log.warning("A new node did not report its name: %.200s", facts.get(UNANSWERED))


def _write(stream: socket.socket, outbox: queue.SimpleQueue[Frame | None]) -> None:
    while (frame := outbox.get()) is not None:
        try:
            wire.send(stream, frame)
        except OSError:
            # The reader notices it too, and unsent letters will be sent in the next run.
            return
