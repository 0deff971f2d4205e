"""Prefork server: a process that has imported Flower and forks for each message to a party.

    supernode -> superexec -> prefork_client --arguments--> prefork_server --fork--> flwr-clientapp
                              (20 ms)                                       (all is imported)

Flower starts a process for every message, and its imports would take 1.3 s of a core before it
reads a message. Forking is safe because this process only imports: it has one thread and no
connection. It imports under the two locks of `app_allow_list.py`.

Callers: `supernode.py` starts it as a process, and ends it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

from elasticdl.engines.federated.flower import app_allow_list, unix_socket
from elasticdl.engines.federated.protocol import wire

COMMAND = "flwr-clientapp"
_CLIENT_APP = "elasticdl.engines.federated.flower.client_app"
_READ_BYTES = 65536


def serve(listener: socket.socket, command: Callable[[], object]) -> None:
    """For each connection, fork a process that runs a command with the received arguments.

    Args:
        listener: Accepts the connections.
        command: Function () that runs the command; it reads its arguments from `sys.argv`.
    """
    # The forks' exit codes are not collected, and ignoring SIGCHLD avoids zombies.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Memory pages of the imports stay shared if the garbage collector does not write to them.
    gc.collect()
    gc.freeze()
    while True:
        stream, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _become(stream, command)
        stream.close()


def _become(stream: socket.socket, command: Callable[[], object]) -> None:
    """In a forked process: run a command with received arguments, send its exit code, and end."""
    code = 1
    try:
        arguments = b""
        while piece := stream.recv(_READ_BYTES):
            arguments += piece
        sys.argv[:] = [COMMAND, *json.loads(arguments)]
        command()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - there is no caller above
        traceback.print_exc()
    finally:
        for file in (sys.stdout, sys.stderr):
            file.flush()
        with stream:
            stream.send(bytes([code & 0xFF]))
        # Skips the exit handlers of the process that it was forked from.
        os._exit(code)


def main() -> None:
    """Allow only our app to run, import what it needs, and then fork a process per message."""
    app_allow_list.lock()
    unix_socket.patch_flower(COMMAND)
    listener = wire.listen(Path(sys.argv[1]))
    (command,) = entry_points(group="console_scripts", name=COMMAND)
    run = command.load()
    __import__(_CLIENT_APP)
    serve(listener, run)


if __name__ == "__main__":
    main()
