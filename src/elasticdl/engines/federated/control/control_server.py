"""Control socket: sends user commands to a running aggregator or party on the same machine.

    elasticdl federated VERB CONFIG              the process of that CONFIG
    send_command() ----- verb, options ----> accept thread ---> answered immediately (`status`)
                                          '--> queue --> its main loop, at a safe point
           <-- notes; done or failed ---------------------------'

The socket is in a temporary folder that only this user can enter, because the path of a socket must
be short. A file `control.json` in the process's own folder contains the path. A killed process
leaves this file behind; if no process listens at the path, the process is reported as "not
running". The socket cannot be reached over a network. This module does not know which verbs exist
or what they do.

A command may take hours, but a process that is suspended (SIGSTOP) or stuck is silent as well. The
caller therefore checks on a second connection that the process is alive; its accept thread answers
immediately. The caller also checks before it sends the command, so that a command it has given up
on is never executed later.

Callers: `aggregator_commands.py` and `flower/deployment.py` listen; `elasticdl.federated` sends
commands.
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
from elasticdl.engines.federated.protocol import wire
from elasticdl.engines.federated.protocol.wire import Facts, Frame
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
# A caller sends its command right away, and a suspended caller must not block training.
_READ_S = 5.0
_SEND_S = 5.0
# Longer than another caller may take to send its command (`_READ_S`).
_ANSWER_S = 10.0

AtOnce: TypeAlias = Callable[[str, Facts], Facts | None]
"""Function (verb, options) -> result of the command; called in the accept thread.

If it returns None, the command is queued for the main loop.
"""

_log = logging.getLogger("elasticdl")


class Command:
    """A received command, whose sender waits for the result.

    Args:
        verb: The name of the command, such as `stop`.
        options: Its options; JSON values.
        stream: Connection to the sender.
    """

    def __init__(self, verb: str, options: Facts, stream: socket.socket) -> None:
        self.verb = verb
        self.options = options
        self._stream: socket.socket | None = stream

    def note(self, text: str) -> None:
        """Send progress to the caller; does nothing if the caller has disconnected."""
        self._send(Frame(_NOTE, {"text": text}))

    def done(self, facts: Facts) -> None:
        """Send the result, and close the connection."""
        self._send(Frame(_DONE, facts))
        self._close()

    def failed(self, error: BaseException) -> None:
        """Send the error, and close the connection."""
        self._send(Frame(_FAILED, {"kind": errors.kind_of(error), "text": str(error)}))
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


class CommandQueue(Protocol):
    """Interface to the queue of commands that a process has received and not yet executed."""

    def take(self, timeout_s: float = 0.0) -> Command | None:
        """Return the next command, waiting up to `timeout_s` for it; None if there is none."""
        ...


class NoCommands:
    """An empty queue, for a process that accepts no commands; see `CommandQueue`."""

    def take(self, timeout_s: float = 0.0) -> Command | None:
        """Return None immediately, because this process accepts no commands."""
        del timeout_s
        return None


class Control:
    """Receives commands to this process on a socket, and queues them for `take`.

    A context manager: the socket exists only inside the `with` block.

    Args:
        folder: The process's own folder, on which it holds a lock.
        at_once: Function (verb, options) -> result of a command that can be answered immediately.
            If the result is None, the command is queued for `take`. The function is called in
            another thread; an exception that it raises is sent to the command's sender.
    """

    def __init__(self, folder: Path, at_once: AtOnce) -> None:
        self._folder = OutputFolder(folder)
        self._at_once = at_once
        self._orders: queue.Queue[Command] = queue.Queue()
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
        # The file is no longer needed, and deleting it may fail, for instance on a full disk.
        with contextlib.suppress(OutputError):
            self._folder.delete(ADDRESS_FILE)
        why = f": {error}" if isinstance(error, ElasticDLError) else "."
        while (order := self.take()) is not None:
            order.failed(TrainingError(f"The process ended before it executed the command{why}"))

    def take(self, timeout_s: float = 0.0) -> Command | None:
        """Return the next command, waiting up to `timeout_s` for it; None if there is none."""
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
                self._take_in(Command(frame.kind, frame.facts, stream))

    def _take_in(self, order: Command) -> None:
        if order.verb == _PING:
            order.done({})
            return
        try:
            facts = self._at_once(order.verb, order.options)
        except Exception as error:  # noqa: BLE001 - no error may end the process
            if not isinstance(error, ElasticDLError):
                _log.exception("A command could not be executed.")
            order.failed(error)
            return
        if facts is None:
            self._orders.put(order)
        else:
            order.done(facts)


def send_command(
    folder: Path, verb: str, options: Mapping[str, Any], note: Callable[[str], None]
) -> Facts | None:
    """Send a command to the process that holds a folder's lock, and wait for the result.

    Args:
        folder: The process's own folder.
        verb: The command.
        options: Its options; JSON values.
        note: Called with each progress message.

    Returns:
        The result; None if no process is running.

    Raises:
        ElasticDLError: The command failed in the process; this is its error.
        UsageError: The process runs on another machine or belongs to another user.
        TrainingError: The process ended before it answered.
        UnavailableError: The process runs but does not answer. If it did not answer from the
            start, the command was not sent.
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
                f"The process of {folder} ended before `{verb}` was done; see its output for the "
                "reason."
            ) from error


@dataclass(frozen=True)
class _Address:
    """Path of the socket on which a process accepts commands, and the ID of the process."""

    socket: Path
    pid: int


def _address(folder: Path) -> _Address | None:
    """Read the address of the process that uses a folder; None if there is no address file.

    Raises:
        UsageError: The address file cannot be read, or was written on another machine.
    """
    file = folder / ADDRESS_FILE
    try:
        address = json.loads(file.read_text())
        at, host = _Address(Path(address["socket"]), int(address["pid"])), str(address["host"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{file}: cannot be read ({error}), so the process that uses the folder cannot be "
            "reached. Run the command as the user who started it."
        ) from error
    if host != socket.gethostname():
        raise UsageError(
            f"{file}: the process runs on {host}, and this is {socket.gethostname()}. Run the "
            "command there: it accepts no commands over the network."
        )
    return at


def _reach(at: _Address, folder: Path) -> socket.socket | None:
    """Connect to the socket of a process; None if the process was killed.

    Raises:
        UsageError: The process belongs to another user.
        UnavailableError: The process's queue of waiting connections is full.
    """
    foreign = (
        f"{folder}: the process belongs to another user, and only that user can send it commands."
    )
    try:
        if at.socket.stat().st_uid == os.getuid():
            return wire.connect(at.socket, _ANSWER_S)
    except PermissionError as error:
        raise UsageError(foreign) from error
    except (BlockingIOError, TimeoutError) as error:
        raise _silent(at, folder) from error
    except OSError:
        # The process was killed, so nothing listens.
        return None
    raise UsageError(foreign)


def _is_there(at: _Address, folder: Path) -> bool:
    """Return whether a process answers; False if it was killed or has just ended.

    Raises:
        UnavailableError: The process runs but does not answer.
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
    """Wait until the process at the other end of a stream sends progress or the result.

    While it is silent, check on another connection that it is alive.

    Raises:
        UnavailableError: The process runs but does not answer.
        EOFError: The process no longer runs.
    """
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    while not poll.poll(_ANSWER_S * 1000):
        # Its result may have arrived just before it ended.
        if not _is_there(at, folder) and not poll.poll(0):
            raise EOFError


def _silent(at: _Address, folder: Path) -> UnavailableError:
    message = f"{folder}: the process that uses it ({at.pid}) did not answer within"
    if _is_stopped(at.pid):
        return UnavailableError(
            f"{message} {_ANSWER_S:g} s: it is suspended (SIGSTOP, or Ctrl-Z in its terminal). "
            f"Resume it with `kill -CONT {at.pid}`, and run the command again."
        )
    return UnavailableError(
        f"{message} {_ANSWER_S:g} s: the machine is overloaded, or the process is stuck. Run the "
        f"command again later. `kill {at.pid}` ends the process; run its command again to resume "
        "from the saved progress."
    )


def _is_stopped(pid: int) -> bool:
    try:
        # The process name, in parentheses, may contain any character.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return False
    return state in {"T", "t"}


def _error(facts: Facts) -> ElasticDLError:
    kind, text = str(facts.get("kind")), str(facts.get("text"))
    known = getattr(errors, kind, None)
    if not (isinstance(known, type) and issubclass(known, ElasticDLError)):
        return ElasticDLError(f"{kind}: {text}")
    # Some error classes build their message from other arguments, so __init__ is skipped.
    error = known.__new__(known)
    Exception.__init__(error, text)
    return error
