"""A worker in a process of its own, which is forked where the frameworks are imported already.

    WorkerProcess  --- the methods of `Worker` --->  Worker
    (an actor of Ray's)                              (the process that trains)

An actor of Ray's cannot be forked, since it has threads. Being two processes, they do not wait
for each other's interpreter either. An actor whose worker has died can start the next one; with the
actor its worker dies.

Ray is not known here. Callers: `placement.py` makes it an actor.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.engines.elastic import fork_server
from elasticdl.engines.elastic.crash_note import BatchInWork, CrashNote
from elasticdl.engines.elastic.worker import Failure, Worker
from elasticdl.engines.elastic.worker_warnings import WarningLog
from elasticdl.scratch import has_room, no_room
from elasticdl.training.create import limit_threads, modules_of

if TYPE_CHECKING:
    from elasticdl.engines.elastic.worker import Assignment, Identity

_WHAT_A_WORKER_IMPORTS = ("elasticdl.engines.elastic.quorum", "elasticdl.engines.elastic.worker")


@dataclass(frozen=True)
class Died:
    """The answer to each call of a worker whose process is dead.

    Attributes:
        working_on: The batches it was working on, as far as that is known.
    """

    working_on: Sequence[BatchInWork] = ()


class WorkerProcess:
    """See the module.

    Args:
        assignment: What the worker is to do.
        name: Whose processes are forked from one server: of one run, on one machine.
    """

    def __init__(self, assignment: Assignment, name: str) -> None:
        self._assignment = assignment
        self._folder = Path(tempfile.gettempdir(), f"elasticdl-{name}")
        self._worker: Any = None
        self._note: CrashNote | None = None
        self._num_processes = 0
        self._lock = threading.Lock()

    def prepare(self, *, in_background: bool = False) -> Identity | Failure | Died:
        """Start a process, and let the worker in it prepare itself; once more if it has died.

        Args:
            in_background: Nobody waits for it.
        """
        assignment = self._assignment
        # The server inherits what they are told by, before it imports the frameworks.
        limit_threads(assignment.num_threads)
        modules = [*_WHAT_A_WORKER_IMPORTS, *modules_of(assignment.framework)]
        try:
            self._process = fork_server.connect(self._folder, modules)
        except (OSError, subprocess.SubprocessError) as error:
            return Failure(
                "TrainingError",
                f"{self._folder}: cannot start a process for a worker there: {error}. Set TMPDIR "
                "to a folder that can be written to and has a short path.",
            )
        try:
            self._num_processes += 1
            note = self._folder / f"batches-{os.getpid()}-{self._num_processes}"
            self._note = CrashNote(note)
            fork_server.fork(self._process, _serve, assignment, note)
            address, key = self._process.recv()
            manager = _Manager(address, key)
            manager.connect()
            worker = manager.worker()
        except (EOFError, OSError):
            return Died()
        with self._lock:
            self._worker = worker
        prepared: Identity | Failure | Died = self.call("prepare", in_background=in_background)
        return prepared

    def call(self, method: str, *args: Any, **named: Any) -> Any:
        """Call a method of the worker.

        Returns:
            What it returned; a `Failure` if it raised; None before it is prepared; `Died`.
        """
        worker = self._worker
        if worker is None:
            return None
        try:
            return worker.call(method, *args, **named)
        except (EOFError, OSError):
            # What the method raises is returned, so this is of the connection.
            with self._lock:
                if self._worker is worker:
                    self._worker = None
            return Died(() if self._note is None else tuple(self._note.read()))


# --- in the worker's process --------------------------------------------------------------------


class _Reachable:
    """A worker as seen from the other process.

    Args:
        worker: Whose methods are called, each call in a thread of its own.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def call(self, method: str, *args: Any, **named: Any) -> Any:
        """Call a method; what it raises is returned as a `Failure`, with its traceback."""
        try:
            return getattr(self._worker, method)(*args, **named)
        except Exception as error:  # noqa: BLE001 - exceptions do not travel well
            folder = Path(tempfile.gettempdir())
            if isinstance(error, OSError) and not has_room(folder):
                return Failure("OutputError", no_room(folder, f" on {socket.gethostname()}"))
            return Failure(
                "TrainingError", f"A worker raised, which it should not:\n{traceback.format_exc()}"
            )


class _Manager(BaseManager):
    """The standard library's way to call an object in another process."""

    worker: Callable[[], Any]


_Manager.register("worker", exposed=["call"])


def _serve(assignment: Assignment, note: Path, starter: Connection) -> None:
    warnings = WarningLog()
    warnings.attach()
    worker = _Reachable(Worker(assignment, CrashNote(note), warnings))
    # It is mapped into both processes by now.
    note.unlink(missing_ok=True)
    _Manager.register("worker", lambda: worker, exposed=["call"])
    key = os.urandom(32)
    # Not within its own folder: the path of a socket has room for 107 characters.
    server = _Manager(str(Path(tempfile.gettempdir()).parent / str(os.getpid())), key).get_server()
    starter.send((server.address, key))
    server.serve_forever()
