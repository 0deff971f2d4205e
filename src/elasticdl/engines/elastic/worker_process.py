"""Worker process: runs a worker in a process forked from a server with the frameworks imported.

    WorkerProcess  --- the methods of `Worker` --->  Worker
    (a Ray actor)                                    (the process that trains)

A Ray actor cannot be forked, because it has threads. As two processes, the actor and its worker do
not block each other's interpreter either. An actor whose worker has died can start another one; a
worker dies with its actor.

Does not depend on Ray. Callers: `placement.py` makes it an actor.
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
from elasticdl.engines.elastic.worker import Worker, WorkerFailure
from elasticdl.engines.elastic.worker_warnings import WarningLog
from elasticdl.scratch import has_room, no_room
from elasticdl.training.create import limit_threads, modules_of

if TYPE_CHECKING:
    from elasticdl.engines.elastic.worker import Assignment, Identity

_WHAT_A_WORKER_IMPORTS = ("elasticdl.engines.elastic.allreduce", "elasticdl.engines.elastic.worker")


@dataclass(frozen=True)
class Died:
    """Result of a call to a worker whose process is dead.

    Attributes:
        working_on: The batches it was working on, as far as known.
        how: How it ended, such as "killed by SIGKILL"; empty if unknown.
    """

    working_on: Sequence[BatchInWork] = ()
    how: str = ""


class WorkerProcess:
    """A worker in a separate process, and calls of its methods; see the module docstring.

    Args:
        assignment: Settings of the run.
        name: Name of the fork server, which the workers of one run on one machine share.
    """

    def __init__(self, assignment: Assignment, name: str) -> None:
        self._assignment = assignment
        self._folder = Path(tempfile.gettempdir(), f"elasticdl-{name}")
        self._worker: Any = None
        self._note: CrashNote | None = None
        self._num_processes = self._process_id = 0
        self._lock = threading.Lock()

    def prepare(self, *, in_background: bool = False) -> Identity | WorkerFailure | Died:
        """Start a process and prepare the worker in it; may be called again after its death.

        Args:
            in_background: Whether to work at low priority; see `Worker.prepare`.

        Returns:
            The worker's machine and process; a `WorkerFailure` if the process cannot be started or
            the model cannot be created; `Died` if the process has died.
        """
        assignment = self._assignment
        # Set here, so that the server inherits the limits before it imports the frameworks.
        limit_threads(assignment.num_threads)
        modules = [*_WHAT_A_WORKER_IMPORTS, *modules_of(assignment.framework)]
        try:
            self._process = fork_server.connect(self._folder, modules)
        except (OSError, subprocess.SubprocessError) as error:
            return WorkerFailure(
                "TrainingError",
                f"{self._folder}: cannot start a worker process there: {error}. Set TMPDIR to a "
                "folder that can be written to and has a short path.",
            )
        try:
            self._num_processes += 1
            note = self._folder / f"batches-{os.getpid()}-{self._num_processes}"
            self._note = CrashNote(note)
            fork_server.fork(self._process, _serve, assignment, note)
            address, key, self._process_id = self._process.recv()
            manager = _Manager(address, key)
            manager.connect()
            worker = manager.worker()
        except (EOFError, OSError):
            return Died()
        with self._lock:
            self._worker = worker
        prepared: Identity | WorkerFailure | Died = self.call(
            "prepare", in_background=in_background
        )
        return prepared

    def call(self, method: str, *args: Any, **named: Any) -> Any:
        """Call a method of the worker in its process.

        Args:
            method: Name of the method.
            args: Its arguments.
            named: Its named arguments.

        Returns:
            The method's result, or a `WorkerFailure` if it raised an error. `Died` if the process
            turns out to be dead. None, without a call, if there is no process: `prepare` has not
            started one, or not yet replaced a dead one.
        """
        worker, process_id = self._worker, self._process_id
        if worker is None:
            return None
        try:
            return worker.call(method, *args, **named)
        except (EOFError, OSError):
            # Errors of the method are returned, so this one comes from the connection.
            with self._lock:
                if self._worker is worker:
                    self._worker = None
            working_on = () if self._note is None else tuple(self._note.read())
            return Died(working_on, fork_server.how_ended(self._folder, process_id))


# --- in the worker's process --------------------------------------------------------------------


class _Reachable:
    """Receiver of calls from the process that started a worker; it calls the worker's methods.

    It lives in the worker's process. Each call runs in a separate thread.

    Args:
        worker: The worker.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def call(self, method: str, *args: Any, **named: Any) -> Any:
        """Call a method of the worker; return its result, or a `WorkerFailure` if it raised."""
        try:
            return getattr(self._worker, method)(*args, **named)
        except Exception as error:  # noqa: BLE001 - many exceptions cannot be pickled
            folder = Path(tempfile.gettempdir())
            if isinstance(error, OSError) and not has_room(folder):
                return WorkerFailure("OutputError", no_room(folder, f" on {socket.gethostname()}"))
            return WorkerFailure(
                "TrainingError", f"Unexpected error in a worker:\n{traceback.format_exc()}"
            )


class _Manager(BaseManager):
    """Server in the worker's process that receives the Ray actor's calls of `Worker` methods."""

    worker: Callable[[], Any]


_Manager.register("worker", exposed=["call"])


def _serve(assignment: Assignment, note: Path, starter: Connection) -> None:
    warnings = WarningLog()
    warnings.attach()
    worker = _Reachable(Worker(assignment, CrashNote(note), warnings))
    # Both processes have mapped the file by now.
    note.unlink(missing_ok=True)
    _Manager.register("worker", lambda: worker, exposed=["call"])
    key = os.urandom(32)
    # Not in its own folder, because the path of a socket is limited to 107 characters.
    server = _Manager(str(Path(tempfile.gettempdir()).parent / str(os.getpid())), key).get_server()
    starter.send((server.address, key, os.getpid()))
    server.serve_forever()
