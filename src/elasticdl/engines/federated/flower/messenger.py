"""A process that has imported Flower, and is forked for each message a party gets.

    supernode -> superexec -> errand.py --arguments--> messenger --fork--> flwr-clientapp
                              (20 ms)                                     (has all it needs)

Flower starts a process for every message, which would import for 1.3 s of a core before it reads
anything. Forking is safe because the messenger does nothing but import: it has one thread, and no
connection. What it imported, it imported locked (`guard.py`).

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

from elasticdl.engines.federated import wire
from elasticdl.engines.federated.flower import guard, local

COMMAND = "flwr-clientapp"
_CLIENT_APP = "elasticdl.engines.federated.flower.client_app"
_READ_BYTES = 65536


def serve(listener: socket.socket, command: Callable[[], object]) -> None:
    """Fork for each connection, and run a command with the arguments that come over it.

    Args:
        listener: Where they come.
        command: Reads its arguments from `sys.argv`.
    """
    # Nobody asks what they ended with, so none stays as a zombie.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Pages of what is imported stay shared if nobody counts references in them.
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
    """Run a command in this process, which ends with it."""
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
    except BaseException:  # noqa: BLE001 - there is nobody above
        traceback.print_exc()
    finally:
        for file in (sys.stdout, sys.stderr):
            file.flush()
        with stream:
            stream.send(bytes([code & 0xFF]))
        # Not the way out of the process that it was forked from.
        os._exit(code)


def main() -> None:
    """Lock, import what Flower's command needs, and serve at a socket."""
    guard.lock()
    local.enclose(COMMAND)
    listener = wire.listen(Path(sys.argv[1]))
    (command,) = entry_points(group="console_scripts", name=COMMAND)
    run = command.load()
    __import__(_CLIENT_APP)
    serve(listener, run)


if __name__ == "__main__":
    main()
