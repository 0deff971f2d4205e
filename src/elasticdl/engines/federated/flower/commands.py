"""Flower's commands as child processes: their arguments, their environment, and their failures.

Only Flower's documented interfaces are used: `flower-superlink`, `flower-supernode`,
`flwr --format json`, environment variables. Flower is configured to install nothing, and to neither
check for updates nor send statistics over the network.

Callers: `superlink.py`, `supernode.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elasticdl.errors import MissingExtraError, TrainingError

_LOCAL_MODULE = "elasticdl.engines.federated.flower.unix_socket"
# Flower requires an address, but must not listen on it or connect to it: see `unix_socket.py`.
NOWHERE_HOST, NOWHERE_PORT = "127.0.0.1", 1
_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_PACKAGES = Path(__file__).resolve().parents[4]
_END_S = 10.0
_COMMAND_S = 120.0
_TAIL_BYTES = 16384
# Polling interval of an executor for new tasks, in seconds. Each poll costs milliseconds in two
# processes, so it is short only where a message waits for it.
POLL_INTERVAL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
_QUIET = {
    # No usage statistics, no check for updates, nothing from pypi.org.
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "PYTHONUNBUFFERED": "1",
    # Flower draws boxes as wide as the terminal.
    "COLUMNS": "200",
    "NO_COLOR": "1",
}


class Child:
    """Runs a command as a child process until `end` is called; it never outlives this process.

    Args:
        command: The command and its arguments.
        environment: All of its environment variables.
        log: Its output is appended to this file.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with log.open("ab") as file:
            self._log_start = file.tell()
            self._process = subprocess.Popen(  # noqa: S603 - Flower's own commands
                # -I: the supervisor needs only the standard library.
                [sys.executable, "-I", str(_SUPERVISOR), *command],
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                # Ctrl-C in a terminal must reach only this process, which ends its children itself.
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        """Whether the command is running."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process ID of the supervisor, the command's parent."""
        return self._process.pid

    def output(self) -> str:
        """Return the last part of the command's output since it was started."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, end - _TAIL_BYTES))
            return file.read().decode(errors="replace")
        return ""

    def end(self) -> None:
        """End the command and all processes that it started, and wait until they have ended."""
        assert self._process.stdin is not None  # noqa: S101 - started with a pipe
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment variables of a Flower process.

    Args:
        home: Flower's own folder, used only by this federation.
        more: Further variables.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
    local = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1", "localhost")))
    return {
        **kept,
        **_QUIET,
        "FLWR_HOME": str(home),
        # Its processes talk to each other directly; only traffic to other machines may use a proxy.
        "NO_PROXY": local,
        "no_proxy": local,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), kept.get("PATH", os.defpath))),
        "PYTHONPATH": _python_path(),
        **more,
    }


def program(name: str) -> str:
    """Return the path of one of Flower's commands.

    Raises:
        MissingExtraError: Flower is not installed.
    """
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise MissingExtraError("flwr", "federated", "Federated training")
    return found


def unix_socket_command(name: str) -> list[str]:
    """Return the first arguments of a command line that runs a Flower command on a unix socket.

    Arguments of the Flower command follow them. Other users cannot connect to the socket. The
    variable `SOCKET` in the command's environment contains its path; see `unix_socket.py`.

    Raises:
        MissingExtraError: Flower is not installed.
    """
    program(name)
    # -P: modules in the working directory must not shadow libraries.
    return [sys.executable, "-P", "-m", _LOCAL_MODULE, name]


def write_commands(folder: Path, commands: Mapping[str, Sequence[str]]) -> None:
    """Write scripts to the folder that is the whole `PATH` of a Flower process.

    So the process can start no other programs by name.

    Args:
        folder: The folder; its old contents are removed.
        commands: Name of each script -> the command line that it runs. Arguments of the script are
            appended.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    for name, command in commands.items():
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        script.chmod(0o700)


def ask_flwr(arguments: Sequence[str], variables: Mapping[str, str]) -> dict[str, Any]:
    """Run a `flwr` command and return its JSON output.

    Args:
        arguments: Arguments of the command, without `flwr` and `--format json`.
        variables: All of its environment variables, as `environment` returns them; `SOCKET` is the
            path of the superlink's unix socket.

    Returns:
        Its output, a parsed JSON object.

    Raises:
        TrainingError: The command failed; the message contains its output.
    """
    what = f"flwr {arguments[0]}"
    try:
        done = subprocess.run(  # noqa: S603 - Flower's own command
            [*unix_socket_command("flwr"), *arguments, "--format", "json"],
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TrainingError(f"`{what}` did not answer within {_COMMAND_S:.0f} s.") from error
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {}
    if not isinstance(answer, dict) or not answer.get("success"):
        output = (answer or {}).get("error-message") or done.stderr.strip() or done.stdout.strip()
        raise TrainingError(f"`{what}` failed: {output or f'exit code {done.returncode}'}")
    return answer


def free_port() -> int:
    """Return a currently free port of 127.0.0.1; another process may still take it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def _python_path() -> str:
    """Return a `PYTHONPATH` with which a child process can import this package.

    It has this process's own paths, made absolute, because the child may run in another folder.
    """
    given = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    paths = [str(Path(part).resolve()) for part in given]
    return os.pathsep.join(dict.fromkeys([*paths, str(_PACKAGES)]))
