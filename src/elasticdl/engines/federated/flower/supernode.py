"""A party's part of Flower: a supernode that stays connected to the aggregator.

    FOLDER/bin/        all commands that the supernode can start: two
    FOLDER/flwr/       Flower's own folder
    FOLDER/*.log       what it prints

A supernode that dies is started again. Flower believes for up to 60 s that one which was killed is
still connected, and lets no second one in under the same key; so one that is refused is tried for
longer than that. Flower's answer is the same for a key that is not registered. An aggregator that
does not answer is waited for without end.

Callers: `elasticdl federated party`.
"""

from __future__ import annotations

import http
import http.client
import logging
import re
import shutil
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.engines.federated.flower.commands import (
    NOWHERE_HOST,
    NOWHERE_PORT,
    POLL_INTERVAL,
    Child,
    enclosed,
    environment,
    write_commands,
)
from elasticdl.engines.federated.flower.messenger import COMMAND
from elasticdl.engines.federated.flower.words import PARTY_SOCKET, SOCKET
from elasticdl.errors import TrainingError

if TYPE_CHECKING:
    from elasticdl.engines.federated.flower.keys import PartyKeys

_ERRAND = Path(__file__).with_name("errand.py")
_MESSENGER = "elasticdl.engines.federated.flower.messenger"
_KNOCK_S = 5.0
_WATCH_S = 0.2
_RETRY_S = 2.0
# Flower counts a node as connected for 60 s after its last heartbeat.
_PATIENCE_S = 75.0
_CONNECTED = "SuperNode ID:"
_EXECUTOR = "flower-superexec"
_ANOTHER_USER = (
    "The aggregator was started by another user of this machine, and without keys. Then it serves "
    "only parties of the same user. Give both sides keys: `elasticdl federated keys`."
)
# How OpenSSL numbers what is wrong with a certificate.
_WRONG_HOST, _EXPIRED = (62, 64), 10

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CHATTER = re.compile(r"(INFO|DEBUG)\b|For more information")

_log = logging.getLogger("elasticdl")


class Supernode:
    """See the module.

    Args:
        folder: For its files.
        address: HOST:PORT of the aggregator.
        keys: Of this party. None: plain HTTP, and no identity.
        socket_path: Where this party's own process answers, in a folder that only this user can
            enter; further sockets are made beside it.

    Raises:
        MissingExtraError: Flower is not installed.
    """

    def __init__(
        self, folder: Path, address: str, keys: PartyKeys | None, socket_path: Path
    ) -> None:
        self.folder = folder
        self._address = address
        self._keys = keys
        self._program = enclosed("flower-supernode")
        self._socket_path = socket_path
        # Beside it, where paths are short enough.
        self._messenger_path = socket_path.with_name(f"{socket_path.name}.m")
        self._runtime_path = socket_path.with_name(f"{socket_path.name}.r")
        self._child: Child | None = None
        self._messenger: Child | None = None
        self._closing = threading.Event()
        self._changed = threading.Condition()
        self._connected = False
        self._was_connected = False
        self._error: str | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the aggregator has let it in, as far as is known here."""
        return self._connected

    @property
    def was_connected(self) -> bool:
        """Whether the aggregator has ever let it in, connected or not by now."""
        return self._was_connected

    @property
    def error(self) -> str | None:
        """Why it has given up; None if it has not."""
        return self._error

    def start(self) -> None:
        """Start it; it connects by itself, now or when the aggregator is there.

        Raises:
            TrainingError: The aggregator can be reached, but not with these keys.
        """
        unreachable = knock(self._address, None if self._keys is None else self._keys.ca)
        if unreachable is not None:
            _log.warning("%s It is tried again and again.", unreachable)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.write_commands()
        self._thread = threading.Thread(target=self._watch, name="supernode", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is connected.

        Returns:
            Whether it is.

        Raises:
            TrainingError: It has given up.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._connected or self._error, timeout_s)
        if self._error is not None:
            raise TrainingError(self._error)
        return self._connected

    def wait_until_given_up(self) -> None:
        """Wait until it has an `error`, which it may never have."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None)

    def close(self) -> None:
        """End it; the aggregator is told that this party goes."""
        self._closing.set()
        if self._child is not None and self._messenger is not None:
            self._thread.join()
            self._child.end()
            self._messenger.end()

    def write_commands(self) -> None:
        """Write the only two programs that a supernode's tasks may start, by their bare names.

        Flower has commands for tasks of other kinds, and the aggregator says which one it wants.
        """
        shutil.rmtree(self.folder / "flwr" / "apps", ignore_errors=True)
        become = [sys.executable, "-I", "-S", str(_ERRAND), str(self._messenger_path)]
        write_commands(self.folder / "bin", {COMMAND: become, _EXECUTOR: enclosed(_EXECUTOR)})

    def variables(self) -> dict[str, str]:
        """Return the environment of the supernode, which what it starts inherits."""
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

    def _start_messenger(self) -> Child:
        # -P: modules of the folder it runs in must not shadow those of libraries.
        command = [sys.executable, "-P", "-m", _MESSENGER, str(self._messenger_path)]
        return Child(command, self._variables(), self.folder / "messenger.log")

    def _variables(self) -> dict[str, str]:
        variables = {
            PARTY_SOCKET: str(self._socket_path),
            # The supernode's own processes ask it there.
            SOCKET: str(self._runtime_path),
            POLL_INTERVAL: "0.1",
        }
        return environment(self.folder / "flwr", **variables)

    def _watch(self) -> None:
        refused_since_s: float | None = None
        told = ""
        self._messenger = self._start_messenger()
        self._child = self._start()
        while not self._closing.wait(_WATCH_S):
            if not self._messenger.is_alive:
                self._messenger.end()
                self._messenger = self._start_messenger()
            child = self._child
            if child.is_alive:
                if not self._connected and _CONNECTED in child.said():
                    refused_since_s, told = None, ""
                    self._set(connected=True)
                continue
            self._set(connected=False)
            why, is_refused = self._why_ended(child.said())
            if is_refused:
                refused_since_s = refused_since_s or time.monotonic()
                if time.monotonic() - refused_since_s > _PATIENCE_S:
                    self._set(connected=False, error=why)
                    return
            else:
                refused_since_s = None
            if why != told:
                limit = f"for {_PATIENCE_S:.0f} s" if is_refused else "again and again"
                _log.warning("%s It is tried %s.", why, limit)
                told = why
            # Whatever it started is ended with it.
            child.end()
            if not self._closing.wait(_RETRY_S):
                self._child = self._start()

    def _why_ended(self, said: str) -> tuple[str, bool]:
        """Return why a supernode ended, and whether the aggregator let it in and could again.

        Returns:
            A sentence for a person, and True where the aggregator has answered and refused.
        """
        reason = refusal(said, self._keys)
        if reason is not None:
            return reason, True
        # In the words of this module: what was not there when this party began may be wrong.
        try:
            unreachable = knock(self._address, None if self._keys is None else self._keys.ca)
        except TrainingError as error:
            return str(error), True
        if unreachable is not None:
            return unreachable, False
        # As before it was ever connected: a machine on which Flower cannot start.
        return explain(said), not self._was_connected

    def _set(self, *, connected: bool, error: str | None = None) -> None:
        with self._changed:
            self._connected, self._error = connected, error
            self._was_connected |= connected
            self._changed.notify_all()


def knock(address: str, ca: Path | None) -> str | None:
    """Look whether the aggregator is there and is who it should be.

    Flower's supernode tries for ever, and says what is wrong in words of its libraries.

    Args:
        address: HOST:PORT.
        ca: Who signed its certificate; None for plain HTTP.

    Returns:
        None if it answers; why it cannot be reached, which may change.

    Raises:
        TrainingError: It answers, but not in the way it should: that does not change by itself.
    """
    url = f"{'http' if ca is None else 'https'}://{address}/health"
    try:
        context = None if ca is None else ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise TrainingError(f"{ca}: cannot be read as a certificate: {error}.") from error
    try:
        urllib.request.urlopen(url, timeout=_KNOCK_S, context=context).close()  # noqa: S310 - http
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.FORBIDDEN and ca is None:
            raise TrainingError(_ANOTHER_USER) from error
    except (OSError, http.client.HTTPException) as error:
        return _judge(error, address, ca)
    return None


def _judge(error: Exception, address: str, ca: Path | None) -> str:
    """Return why an aggregator cannot be reached.

    Raises:
        TrainingError: It can be, but is not who it should be.
    """
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        raise TrainingError(_judge_certificate(reason, address, ca)) from error
    if isinstance(reason, ssl.SSLError):
        raise TrainingError(
            f"{address} does not speak TLS ({reason.reason}), and this party has keys. "
            "Start the aggregator with its keys as well, or look whether the port is the right one."
        ) from error
    # A TLS server hangs up on who does not speak TLS, or says so in bytes that are no HTTP.
    if ca is None and isinstance(reason, (http.client.HTTPException, ConnectionResetError)):
        raise TrainingError(
            f"{address} does not speak plain HTTP; most likely it speaks TLS. Give this party its "
            "keys: the folder `parties/NAME` that `elasticdl federated keys` wrote."
        ) from error
    if isinstance(reason, socket.gaierror):
        return f"{address}: this machine does not know that host ({reason.strerror})."
    if isinstance(reason, ConnectionRefusedError):
        return f"{address}: nobody listens there. Is the aggregator running?"
    if isinstance(reason, TimeoutError):
        return f"{address}: no answer within {_KNOCK_S:.0f} s. Is a firewall between?"
    return f"{address}: cannot be reached: {reason}."


def _judge_certificate(reason: ssl.SSLCertVerificationError, address: str, ca: Path | None) -> str:
    if reason.verify_code in _WRONG_HOST:
        host = address.rpartition(":")[0]
        return (
            f"The certificate of {address} was not made for that host: {reason.verify_message}. "
            f"Make the keys with --host={host}, or reach the aggregator by a host that they name."
        )
    if reason.verify_code == _EXPIRED:
        return f"The certificate of {address} has expired. Make new keys for the federation."
    return (
        f"The certificate of {address} was not signed by {ca} ({reason.verify_message}): it "
        "belongs to another federation, or somebody else answers there. Nothing was sent. Use "
        "keys of one `elasticdl federated keys` on all machines."
    )


def refusal(said: str, keys: PartyKeys | None) -> str | None:
    """Return, for a person, why the aggregator refused a supernode, from what that printed.

    Returns:
        None if it was not refused, as far as is known here.
    """
    if "registration is disabled" in said or "must be registered" in said:
        return (
            "The aggregator takes only parties whose keys it knows, and this one has none. "
            "Give it its folder `parties/NAME` of `elasticdl federated keys`."
        )
    if "Failed to activate SuperNode" in said and keys is not None:
        return (
            f"The aggregator did not let this party in: it does not know the key {keys.key} "
            f"({keys.fingerprint}), or a process with this key is connected already. (After a "
            "crash it believes so for up to a minute.) The aggregator's owner can compare: "
            "`ssh-keygen -lf parties/NAME.pub` beside the aggregator's certificate prints that "
            "fingerprint. If none does, copy this party's public key (the node.pub beside its key) "
            "there as NAME.pub and start the aggregator again, which reads keys at its start."
        )
    if "403 Forbidden" in said and keys is None:
        return _ANOTHER_USER
    if "Invalid SuperNode authentication" in said or "401" in said:
        return (
            "The aggregator did not accept this party's signature. The clocks of both machines "
            "must agree to five minutes."
        )
    return None


def explain(said: str) -> str:
    """Return what a supernode printed last, for a person; numbers of processes are left out."""
    plain = [_COLOUR.sub("", line).strip() for line in said.splitlines()]
    lines = [line for line in plain if line and not _CHATTER.match(line)]
    return f"Flower's supernode ended: {' / '.join(lines[-3:])[-300:] or 'it printed nothing'}."
