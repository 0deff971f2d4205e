"""Prefork client: run by Flower for each message, it makes the prefork server fork a process.

    python -I -S prefork_client.py SOCKET ARGUMENTS ...

The forked process handles the message; this program waits, and ends with the same exit code. It
imports only a little of the standard library, so that it starts in 20 ms.

Callers: the script `flwr-clientapp` that `supernode.py` writes, by path.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

# Variable with a task's token, and its placeholder on a command line, which every user can read.
TOKEN = "ELASTICDL_FLOWER_TOKEN"  # noqa: S105 - the name of a variable
PLACEHOLDER = "in-the-environment"

# The prefork server may still be importing Flower, or be restarting.
_PATIENCE_S = 30.0
_POLL_S = 0.05


def with_token(arguments: list[str]) -> list[str]:
    """Replace the placeholder in a command's arguments by Flower's secret token.

    The token comes in an environment variable, because other users can read a command line. It is
    removed from this process's environment.
    """
    token = os.environ.pop(TOKEN, PLACEHOLDER)
    return [token if one == PLACEHOLDER else one for one in arguments]


def main(path: str, arguments: list[str]) -> int:
    """Make the prefork server run the command with these arguments; return its exit code."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        stream = socket.socket(socket.AF_UNIX)
        try:
            stream.connect(path)
            break
        except OSError as error:
            stream.close()
            if time.monotonic() > deadline_s:
                sys.stderr.write(f"{path}: no process answers: {error}\n")
                return 1
            time.sleep(_POLL_S)
    with stream:
        stream.sendall(json.dumps(arguments).encode())
        stream.shutdown(socket.SHUT_WR)
        # One byte, the exit code, when the fork exits; none if it is killed.
        code = stream.recv(1)
        return code[0] if code else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], with_token(sys.argv[2:])))
