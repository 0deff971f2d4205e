"""Flower's processes at a party: a supernode that stays connected to the aggregator.

    FOLDER/bin/        the only two commands that the supernode can start
    FOLDER/flwr/       Flower's own folder
    FOLDER/*.log       output of the processes

A supernode that dies is restarted. For up to 60 s, Flower regards a killed supernode as connected,
and refuses a second one with the same key; so a refused supernode is retried for longer than that.
Flower gives the same answer for an unregistered key. A supernode waits without limit for an
aggregator that does not answer. `certificate_check.py` therefore checks why it does not, and
whether its certificate is the expected one.

Callers: `elasticdl federated party`.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.engines.federated.flower.certificate_check import ANOTHER_USER, check_connection
from elasticdl.engines.federated.flower.commands import (
    NOWHERE_HOST,
    NOWHERE_PORT,
    POLL_INTERVAL,
    Child,
    environment,
    unix_socket_command,
    write_commands,
)
from elasticdl.engines.federated.flower.prefork_server import COMMAND
from elasticdl.engines.federated.flower.protocol_constants import PARTY_SOCKET, SOCKET
from elasticdl.errors import TrainingError

if TYPE_CHECKING:
    from elasticdl.engines.federated.flower.keys import PartyKeys

_PREFORK_CLIENT = Path(__file__).with_name("prefork_client.py")
_PREFORK_SERVER = "elasticdl.engines.federated.flower.prefork_server"
_WATCH_S = 0.2
_RETRY_S = 2.0
# Flower counts a node as connected for 60 s after its last heartbeat.
_PATIENCE_S = 75.0
_CONNECTED = "SuperNode ID:"
_EXECUTOR = "flower-superexec"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CHATTER = re.compile(r"(INFO|DEBUG)\b|For more information")

_log = logging.getLogger("elasticdl")


class Supernode:
    """Starts a party's supernode, and restarts it if it dies or is refused.

    Args:
        folder: Folder for the supernode's files: scripts, Flower's own folder and logs.
        address: HOST:PORT of the aggregator.
        keys: Keys of this party; None means plain HTTP, without authentication.
        socket_path: The socket of this party's own process, in a folder that only this user can
            enter; further sockets are created beside it.

    Raises:
        MissingExtraError: Flower is not installed.
    """

    def __init__(
        self, folder: Path, address: str, keys: PartyKeys | None, socket_path: Path
    ) -> None:
        self.folder = folder
        self._address = address
        self._keys = keys
        self._program = unix_socket_command("flower-supernode")
        self._socket_path = socket_path
        # In the same folder, where paths are short enough for sockets.
        self._prefork_path = socket_path.with_name(f"{socket_path.name}.m")
        self._runtime_path = socket_path.with_name(f"{socket_path.name}.r")
        self._child: Child | None = None
        self._prefork_server: Child | None = None
        self._closing = threading.Event()
        self._changed = threading.Condition()
        self._connected = False
        self._was_connected = False
        self._error: str | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the aggregator has accepted the supernode, by the latest output of Flower."""
        return self._connected

    @property
    def was_connected(self) -> bool:
        """Whether the aggregator has ever accepted the supernode, even if disconnected now."""
        return self._was_connected

    @property
    def error(self) -> str | None:
        """Why the supernode has given up connecting; None if it has not given up."""
        return self._error

    def start(self) -> None:
        """Start the supernode, which connects in the background once the aggregator is reachable.

        Raises:
            TrainingError: The aggregator is reachable, but not with these keys.
        """
        unreachable = check_connection(self._address, None if self._keys is None else self._keys.ca)
        if unreachable is not None:
            _log.warning("%s Retrying until it succeeds.", unreachable)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.write_commands()
        self._thread = threading.Thread(target=self._watch, name="supernode", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until the supernode is connected.

        Returns:
            Whether it is connected.

        Raises:
            TrainingError: The supernode has given up.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._connected or self._error, timeout_s)
        if self._error is not None:
            raise TrainingError(self._error)
        return self._connected

    def wait_until_given_up(self) -> None:
        """Wait until the supernode has given up; may wait forever."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None)

    def close(self) -> None:
        """End the supernode; it notifies the aggregator that this party leaves."""
        self._closing.set()
        if self._child is not None and self._prefork_server is not None:
            self._thread.join()
            self._child.end()
            self._prefork_server.end()

    def write_commands(self) -> None:
        """Write scripts for the only two programs that the supernode needs and can find.

        The aggregator chooses the kind of each task, and Flower has a command for each kind. A
        command without a script cannot be started.
        """
        shutil.rmtree(self.folder / "flwr" / "apps", ignore_errors=True)
        become = [sys.executable, "-I", "-S", str(_PREFORK_CLIENT), str(self._prefork_path)]
        write_commands(
            self.folder / "bin", {COMMAND: become, _EXECUTOR: unix_socket_command(_EXECUTOR)}
        )

    def variables(self) -> dict[str, str]:
        """Return the environment of the supernode, which its children inherit."""
        return {**self._variables(), "PATH": str(self.folder / "bin")}

    def _command(self) -> list[str]:
        command = [
            *(*self._program, "--superlink", self._address),
            *("--host", NOWHERE_HOST, "--port", str(NOWHERE_PORT)),
        ]
        if self._keys is None:
            return [*command, "--insecure"]
        return [
            *command,
            *("--root-certificates", str(self._keys.ca)),
            *("--auth-supernode-private-key", str(self._keys.key)),
        ]

    def _start(self) -> Child:
        return Child(self._command(), self.variables(), self.folder / "supernode.log")

    def _start_prefork_server(self) -> Child:
        # -P: modules in the working directory must not shadow libraries.
        command = [sys.executable, "-P", "-m", _PREFORK_SERVER, str(self._prefork_path)]
        return Child(command, self._variables(), self.folder / "prefork-server.log")

    def _variables(self) -> dict[str, str]:
        variables = {
            PARTY_SOCKET: str(self._socket_path),
            # The supernode's child processes connect to it there.
            SOCKET: str(self._runtime_path),
            POLL_INTERVAL: "0.1",
        }
        return environment(self.folder / "flwr", **variables)

    def _watch(self) -> None:
        refused_since_s: float | None = None
        reported = ""
        self._prefork_server = self._start_prefork_server()
        self._child = self._start()
        while not self._closing.wait(_WATCH_S):
            if not self._prefork_server.is_alive:
                self._prefork_server.end()
                self._prefork_server = self._start_prefork_server()
            child = self._child
            if child.is_alive:
                if not self._connected and _CONNECTED in child.output():
                    refused_since_s, reported = None, ""
                    self._set(connected=True)
                continue
            self._set(connected=False)
            why, is_refused = self._why_ended(child.output())
            if is_refused:
                refused_since_s = refused_since_s or time.monotonic()
                if time.monotonic() - refused_since_s > _PATIENCE_S:
                    self._set(connected=False, error=why)
                    return
            else:
                refused_since_s = None
            if why != reported:
                limit = f"for up to {_PATIENCE_S:.0f} s" if is_refused else "until it succeeds"
                _log.warning("%s Retrying %s.", why, limit)
                reported = why
            # Its children are ended with it.
            child.end()
            if not self._closing.wait(_RETRY_S):
                self._child = self._start()

    def _why_ended(self, output: str) -> tuple[str, bool]:
        """Explain to the user why the supernode ended, and decide whether to give up.

        Returns:
            The explanation; and whether to give up if this happens repeatedly. It is True if the
            aggregator has refused the supernode or has another certificate, or if the supernode was
            never connected although the aggregator is reachable.
        """
        reason = refusal(output, self._keys)
        if reason is not None:
            return reason, True
        # Check the aggregator again: if it was not reachable at the start, it may be misconfigured.
        try:
            unreachable = check_connection(
                self._address, None if self._keys is None else self._keys.ca
            )
        except TrainingError as error:
            return str(error), True
        if unreachable is not None:
            return unreachable, False
        # If it was never connected, Flower may be unable to start on this machine.
        return explain(output), not self._was_connected

    def _set(self, *, connected: bool, error: str | None = None) -> None:
        with self._changed:
            self._connected, self._error = connected, error
            self._was_connected |= connected
            self._changed.notify_all()


def refusal(output: str, keys: PartyKeys | None) -> str | None:
    """Explain to the user why the aggregator refused a supernode, from the supernode's output.

    Args:
        output: What the supernode has printed.
        keys: Keys of the party; None if it has none.

    Returns:
        The explanation; None if the output contains no refusal that is known here.
    """
    if "registration is disabled" in output or "must be registered" in output:
        return (
            "The aggregator accepts only parties with a registered key, and this one has no key. "
            "Copy its folder `parties/NAME` from `elasticdl federated keys` to this machine."
        )
    if "Failed to activate SuperNode" in output and keys is not None:
        return (
            f"The aggregator rejected this party: the key {keys.key} ({keys.fingerprint}) is not "
            "registered, or a process with this key is already connected. (After a crash, the old "
            "connection lasts for up to a minute.) On the aggregator's machine, `ssh-keygen -lf "
            "parties/NAME.pub` in the folder of its certificate prints the fingerprints of the "
            "registered keys. If this one is missing, copy this party's public key (node.pub next "
            "to its key) there as NAME.pub and restart the aggregator, which reads the keys at "
            "startup."
        )
    if "403 Forbidden" in output and keys is None:
        return ANOTHER_USER
    if "Invalid SuperNode authentication" in output or "401" in output:
        return (
            "The aggregator rejected this party's signature. The clocks of the two machines must "
            "not differ by more than five minutes."
        )
    return None


def explain(output: str) -> str:
    """Return the last lines of a supernode's output as a reason, without Flower's INFO lines."""
    plain = [_COLOUR.sub("", line).strip() for line in output.splitlines()]
    lines = [line for line in plain if line and not _CHATTER.match(line)]
    return f"Flower's supernode ended: {' / '.join(lines[-3:])[-300:] or 'no output'}."
