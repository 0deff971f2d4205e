"""Client daemon: the party's long-running process, which answers one message at a time.

    supernode -> client_app (new for each message) --socket--> ClientDaemon -> answer(arrays, facts)

Callers: `elasticdl federated party`.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self, TypeAlias

from elasticdl.engines.federated.flower.protocol_constants import JOIN, TAKEN, TASK, UNANSWERED
from elasticdl.engines.federated.protocol import wire
from elasticdl.engines.federated.protocol.messages import (
    Refusal,
    Reply,
    RoundRequest,
    read_request,
    redacted,
)
from elasticdl.engines.federated.protocol.wire import Arrays, Facts, Frame
from elasticdl.errors import MessageError

Answer: TypeAlias = Callable[[Arrays, Facts], tuple[Arrays, Facts]]

_ACCEPT_S = 0.2
# Enough for a process on this machine to send data that it has in memory.
_READ_S = 60.0

_log = logging.getLogger("elasticdl")


class ClientDaemon:
    """Answers the aggregator's messages, which Flower's ClientApp forwards to a socket.

    Messages are answered in the thread that calls `run`. It should be the main thread, which
    handles signals and suits the frameworks best.

    Args:
        path: Path of the socket, in a folder of this user.
        name: The party's name.
        answer: Function (arrays and facts of a request) -> arrays and facts of the reply; called
            for one request at a time. Exceptions are only written to this process's log, because
            they may quote data.
        between: Function () that executes the user's commands. It is called several times a second
            in the same thread, while no message is being answered.

    Attributes:
        is_answering: Whether the thread of `run` is in `answer` or `between`. These may take long,
            so a signal handler interrupts them.
    """

    def __init__(
        self, path: Path, name: str, answer: Answer, between: Callable[[], None] = lambda: None
    ) -> None:
        self._path = path
        self._name = name
        self._answer = answer
        self._between = between
        self.is_answering = False
        self._requests: queue.Queue[tuple[socket.socket, Frame]] = queue.Queue()
        self._closing = threading.Event()

    def __enter__(self) -> Self:
        self._listener = wire.listen(self._path)
        self._listener.settimeout(_ACCEPT_S)
        self._thread = threading.Thread(target=self._accept, name="client-daemon", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.stop()
        self._thread.join()
        self._listener.close()
        self._path.unlink(missing_ok=True)

    def stop(self) -> None:
        """Make `run` return after the current answer; may be called from any thread."""
        self._closing.set()

    def run(self) -> None:
        """Answer messages until `stop` is called."""
        while not self._closing.is_set():
            with self._answering():
                # A signal may have arrived just before and called `stop`.
                if not self._closing.is_set():
                    self._between()
            with contextlib.suppress(queue.Empty):
                stream, frame = self._requests.get(timeout=_ACCEPT_S)
                # A sender that has closed its stream would not receive the answer.
                with stream, self._answering():
                    if not (self._closing.is_set() or _is_closed(stream)):
                        self._reply(stream, frame)

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        self.is_answering = True
        try:
            yield
        finally:
            self.is_answering = False

    def _accept(self) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError):
                stream, _ = self._listener.accept()
                stream.settimeout(_READ_S)
                try:
                    frame = wire.receive(stream)
                except (EOFError, OSError, wire.WireError):
                    stream.close()
                    continue
                stream.settimeout(None)
                if frame.kind == JOIN:
                    if TAKEN in frame.facts:
                        _log.warning(
                            "Another party with the name %r is connected to the aggregator, so "
                            "this one gets no requests. Give each party a unique name "
                            "(connection.info.id in its config), and restart it. (After a crash, "
                            "the restarted party is accepted within a minute.)",
                            self._name,
                        )
                    # Answered in this thread, so that training does not delay it.
                    with stream, contextlib.suppress(OSError):
                        wire.send(stream, Frame(JOIN, {"name": self._name}))
                else:
                    self._requests.put((stream, frame))

    def _reply(self, stream: socket.socket, frame: Frame) -> None:
        try:
            arrays, facts = self._answer(frame.arrays, frame.facts)
            answer = Frame(TASK, facts, arrays)
        except Exception as error:  # noqa: BLE001 - no error may end the party
            _log.exception("A request from the aggregator could not be answered.")
            answer = Frame(
                TASK, {UNANSWERED: f"it raised {type(error).__name__}; see its log for the message"}
            )
        try:
            wire.send(stream, answer)
        except wire.WireError as error:
            _log.error("A reply could not be sent: %s", error)
            with contextlib.suppress(OSError):
                wire.send(stream, Frame(TASK, {UNANSWERED: "its reply could not be sent"}))
        except OSError:
            _log.warning(
                "Flower stopped waiting for the reply; the aggregator may repeat the request."
            )


def answering(name: str, answer: Callable[[RoundRequest], Reply | Refusal]) -> Answer:
    """Convert a function of decoded requests to one of encoded messages, for a `ClientDaemon`.

    The returned function decodes the request, calls `answer` and encodes the result. It answers an
    invalid request with a refusal.

    Args:
        name: The party's name.
        answer: Function (request) -> reply or refusal: `Party.answer`, or a function that wraps it.
    """

    def respond(arrays: Arrays, facts: Facts) -> tuple[Arrays, Facts]:
        try:
            request = read_request(arrays, facts)
        except MessageError as error:
            return Refusal(name, "MessageError", redacted(str(error)), "unknown", 0).to_message()
        return answer(request).to_message()

    return respond


def _is_closed(stream: socket.socket) -> bool:
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    try:
        return bool(poll.poll(0)) and not stream.recv(1, socket.MSG_PEEK)
    except OSError:
        return True
