"""How a person tells a running aggregator or party something, from the same machine.

    elasticdl federated VERB CONFIG              the process of that CONFIG
    tell() ----- verb, options ----> accept thread ---> answered at once (`status`)
                                          '--> queue --> its main loop, where that is safe
           <-- notes; done or failed ---------------------------'

The socket lies in a folder that only this user can enter, and its path, which has to be short,
stands in `control.json` of the process' own folder. A killed process leaves that file behind; then
nobody listens, and that is what "is not running" means. Nothing here can be reached over a network.
What verbs there are and what they do is not known here.

A verb may take hours, and a process that is stopped (SIGSTOP) or stuck is silent as well. So the
caller checks on a second connection that the process is alive; its accept thread answers at once.
The caller also checks before it sends the verb, so that a verb it gave up on is never run later.

Callers: `verbs.py` and `flower/deployment.py` listen, `elasticdl.federated` tells.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import select
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

from elasticdl import errors
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.engines.federated import wire
from elasticdl.engines.federated.wire import Facts, Frame
from elasticdl.errors import (
    ElasticDLError,
    OutputError,
    TrainingError,
    UnavailableError,
    UsageError,
)
from elasticdl.scratch import TemporaryFolder

ADDRESS_FILE = "control.json"
_SOCKET = "control.sock"
_NOTE, _DONE, _FAILED = "note", "done", "failed"
_PING = "ping"

_ACCEPT_S = 0.2
# Whoever tells something has it at hand; who is stopped in a terminal must not stop the training.
_READ_S = 5.0
_SEND_S = 5.0
# Longer than another caller may take to say what he wants (`_READ_S`).
_ANSWER_S = 10.0

AtOnce: TypeAlias = Callable[[str, Facts], Facts | None]
"""Answers a verb and its options in the thread that accepts; None leaves it to the main loop."""

_log = logging.getLogger("elasticdl")


class Order:
    """A verb that somebody waits for.

    Attributes:
        verb: What is to be done.
        options: How; JSON values.
    """

    def __init__(self, verb: str, options: Facts, stream: socket.socket) -> None:
        self.verb = verb
        self.options = options
        self._stream: socket.socket | None = stream

    def note(self, text: str) -> None:
        """Tell how it goes; nothing happens if nobody listens any more."""
        self._send(Frame(_NOTE, {"text": text}))

    def done(self, facts: Facts) -> None:
        """Say what came of it; the last word."""
        self._send(Frame(_DONE, facts))
        self._close()

    def failed(self, error: BaseException) -> None:
        """Say why it could not be done; the last word."""
        self._send(Frame(_FAILED, {"kind": type(error).__name__, "text": str(error)}))
        self._close()

    def _send(self, frame: Frame) -> None:
        if self._stream is None:
            return
        try:
            wire.send(self._stream, frame)
        except OSError:
            self._close()

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class Orders(Protocol):
    """What was told and has not been done yet."""

    def take(self, timeout_s: float = 0.0) -> Order | None:
        """Return the next one, waiting for it for so long; None if there is none."""
        ...


class NoOrders:
    """Nobody can tell anything; see `Orders`."""

    def take(self, timeout_s: float = 0.0) -> Order | None:
        """See `Orders`."""
        del timeout_s
        return None


class Control:
    """Listens for what this process is told; see the module and `Orders`.

    Args:
        folder: The process' own, which it holds a lock on.
        at_once: Answers what need not wait; called in another thread. What it raises is told.
    """

    def __init__(self, folder: Path, at_once: AtOnce) -> None:
        self._folder = OutputFolder(folder)
        self._at_once = at_once
        self._orders: queue.Queue[Order] = queue.Queue()
        self._closing = threading.Event()

    def __enter__(self) -> Self:
        self._short = TemporaryFolder()
        path = self._short.path / _SOCKET
        self._listener = wire.listen(path)
        self._listener.settimeout(_ACCEPT_S)
        address = {"socket": str(path), "pid": os.getpid(), "host": socket.gethostname()}
        try:
            self._folder.write_bytes(ADDRESS_FILE, json.dumps(address).encode())
        except BaseException:
            self._listener.close()
            self._short.cleanup()
            raise
        self._thread = threading.Thread(target=self._accept, name="control", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._thread.join()
        self._listener.close()
        self._short.cleanup()
        # It says nothing that is needed, and what ends here may be ending for want of room.
        with contextlib.suppress(OutputError):
            self._folder.delete(ADDRESS_FILE)
        why = f": {error}" if isinstance(error, ElasticDLError) else "."
        while (order := self.take()) is not None:
            order.failed(TrainingError(f"The process ended before it came to that{why}"))

    def take(self, timeout_s: float = 0.0) -> Order | None:
        """See `Orders`."""
        try:
            return self._orders.get(block=timeout_s > 0, timeout=timeout_s or None)
        except queue.Empty:
            return None

    def _accept(self) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError):
                stream, _ = self._listener.accept()
                try:
                    stream.settimeout(_READ_S)
                    frame = wire.receive(stream)
                except (EOFError, OSError, wire.WireError):
                    stream.close()
                    continue
                stream.settimeout(_SEND_S)
                self._take_in(Order(frame.kind, frame.facts, stream))

    def _take_in(self, order: Order) -> None:
        if order.verb == _PING:
            order.done({})
            return
        try:
            facts = self._at_once(order.verb, order.options)
        except Exception as error:  # noqa: BLE001 - whatever it is, the process stays
            if not isinstance(error, ElasticDLError):
                _log.exception("What was told could not be answered.")
            order.failed(error)
            return
        if facts is None:
            self._orders.put(order)
        else:
            order.done(facts)


def tell(
    folder: Path, verb: str, options: Mapping[str, Any], note: Callable[[str], None]
) -> Facts | None:
    """Tell the process of a folder something, and wait until it is done.

    Args:
        folder: Its own.
        verb: What is to be done.
        options: How; JSON values.
        note: Called with what it tells meanwhile.

    Returns:
        What came of it; None if no process is running.

    Raises:
        ElasticDLError: What it raised; or it cannot be reached from here.
        TrainingError: It ended meanwhile.
        UnavailableError: It runs and does not answer; if that was so at the beginning, it was told
            nothing.
    """
    at = _address(folder)
    if at is None or not _is_there(at, folder):
        return None
    stream = _reach(at, folder)
    if stream is None:
        return None
    with stream:
        try:
            wire.send(stream, Frame(verb, options))
            while True:
                _wait(stream, at, folder)
                frame = wire.receive(stream)
                if frame.kind == _DONE:
                    return frame.facts
                if frame.kind == _FAILED:
                    raise _error(frame.facts)
                note(str(frame.facts.get("text")))
        except TimeoutError as error:
            raise _silent(at, folder) from error
        except (EOFError, OSError, wire.WireError) as error:
            raise TrainingError(
                f"The process of {folder} ended before `{verb}` was done; its own output says why."
            ) from error


@dataclass(frozen=True)
class _Address:
    """Where a process listens, and its number."""

    socket: Path
    pid: int


def _address(folder: Path) -> _Address | None:
    """Return what the process of a folder has written of itself; None if there never was one.

    Raises:
        UsageError: It cannot be read, or is of another machine.
    """
    file = folder / ADDRESS_FILE
    try:
        address = json.loads(file.read_text())
        at, host = _Address(Path(address["socket"]), int(address["pid"])), str(address["host"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{file}: cannot be read ({error}), so it is not known how to reach the process that "
            "works there. It was started by the user who can read it."
        ) from error
    if host != socket.gethostname():
        raise UsageError(
            f"{file}: it was started on {host}, and this is {socket.gethostname()}. Give the "
            "command there: nothing of it can be reached over a network."
        )
    return at


def _reach(at: _Address, folder: Path) -> socket.socket | None:
    """Return a connection to a process; None if it was killed.

    Raises:
        UsageError: It is another user's.
        UnavailableError: So many wait for it that none can be added.
    """
    foreign = f"{folder}: another user runs it, and only that user can tell it something."
    try:
        if at.socket.stat().st_uid == os.getuid():
            return wire.connect(at.socket, _ANSWER_S)
    except PermissionError as error:
        raise UsageError(foreign) from error
    except (BlockingIOError, TimeoutError) as error:
        raise _silent(at, folder) from error
    except OSError:
        # It was killed: nobody listens any more.
        return None
    raise UsageError(foreign)


def _is_there(at: _Address, folder: Path) -> bool:
    """Return whether a process answers; it is not there if it was killed, or has just ended.

    Raises:
        UnavailableError: It runs and does not answer.
    """
    stream = _reach(at, folder)
    if stream is None:
        return False
    with stream:
        try:
            wire.send(stream, Frame(_PING))
            wire.receive(stream)
        except TimeoutError as error:
            raise _silent(at, folder) from error
        except (EOFError, OSError, wire.WireError):
            return False
    return True


def _wait(stream: socket.socket, at: _Address, folder: Path) -> None:
    """Wait until a process says something, as long as it is there.

    Raises:
        UnavailableError: It runs and does not answer.
        EOFError: It does not run any more.
    """
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    while not poll.poll(_ANSWER_S * 1000):
        # Its last word may have come just before it ended.
        if not _is_there(at, folder) and not poll.poll(0):
            raise EOFError


def _silent(at: _Address, folder: Path) -> UnavailableError:
    said = f"{folder}: the process that works there ({at.pid}) does not answer within"
    if _is_stopped(at.pid):
        return UnavailableError(
            f"{said} {_ANSWER_S:g} s: it is stopped (SIGSTOP, or Ctrl-Z in its terminal). Let it "
            f"go on with `kill -CONT {at.pid}`, and give the command again."
        )
    return UnavailableError(
        f"{said} {_ANSWER_S:g} s: the machine is overloaded, or it is stuck. Give the command "
        f"again later. `kill {at.pid}` ends it; its own command resumes from the saved progress."
    )


def _is_stopped(pid: int) -> bool:
    try:
        # Its name, in brackets, may hold anything.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return False
    return state in {"T", "t"}


def _error(facts: Facts) -> ElasticDLError:
    kind, text = str(facts.get("kind")), str(facts.get("text"))
    known = getattr(errors, kind, None)
    if not (isinstance(known, type) and issubclass(known, ElasticDLError)):
        return ElasticDLError(f"{kind}: {text}")
    # Some make their text of other arguments.
    error = known.__new__(known)
    Exception.__init__(error, text)
    return error
