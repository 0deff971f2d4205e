"""Flower's processes at the aggregator: a superlink, the TLS proxy in front of it, the ServerApp.

    FOLDER/state.db        the superlink's database; it survives a kill
    FOLDER/nodes.json      the node of each party's key, written when the key is registered
    FOLDER/run             ID of the newest run (one start of the ServerApp)
    FOLDER/flwr/           Flower's own folder
    FOLDER/bin/            the only two commands that the superlink can start
    FOLDER/*.log           output of the processes

The superlink itself listens on a unix socket in a separate folder (`unix_socket.py`). The TLS proxy
(`tls_proxy.py`) is the child process `front`. A process that dies is restarted, with the same port,
socket and database.

Callers: `parties.py`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ipaddress
import json
import logging
import os
import shutil
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.engines.federated.flower import flower_app
from elasticdl.engines.federated.flower.commands import (
    NOWHERE_HOST,
    NOWHERE_PORT,
    POLL_INTERVAL,
    Child,
    ask_flwr,
    environment,
    free_port,
    unix_socket_command,
    write_commands,
)
from elasticdl.engines.federated.flower.protocol_constants import SOCKET
from elasticdl.engines.federated.protocol import wire
from elasticdl.errors import OutputError, TrainingError, UsageError
from elasticdl.scratch import TemporaryFolder

if TYPE_CHECKING:
    from elasticdl.engines.federated.flower.keys import AggregatorKeys

_CONNECTION = "elasticdl"
_START_S = 60.0
_POLL_S = 0.05
_WATCH_S = 0.2
_FRONT_MODULE = "elasticdl.engines.federated.flower.tls_proxy"
# The only programs that a superlink may start.
_STARTED = ("flower-superexec", "flwr-serverapp")
_CONNECT_S = 1.0

_log = logging.getLogger("elasticdl")


class Superlink:
    """Starts the aggregator's superlink and TLS proxy, and restarts one that dies.

    Args:
        folder: Folder for the superlink's files; a federation must use the same one to resume.
        keys: Certificates and public keys; None means plain HTTP, and only on this machine.
        host: The address that parties connect to; the proxy listens on it.
        port: The port that the proxy listens on. 0: a free port.

    Raises:
        UsageError: There are no keys, and the host is not a loopback address.
        MissingExtraError: Flower is not installed.
    """

    def __init__(
        self, folder: Path, keys: AggregatorKeys | None, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        if keys is None and not _is_local(host):
            raise UsageError(
                f"Without keys, anyone who can reach {host} would be served, without encryption. "
                "Create keys with `elasticdl federated keys`, or listen on 127.0.0.1."
            )
        self.folder = folder
        self.host = host
        self.port = port or free_port()
        # Node -> party; empty without keys.
        self.names: Mapping[int, str] = {}
        self._keys = keys
        self._superlink = unix_socket_command("flower-superlink")
        # A temporary folder, because the path of a socket is limited to 107 bytes.
        self._sockets: TemporaryFolder | None = None
        self._variables: dict[str, str] = {}
        self._children: dict[str, Child] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None

    @property
    def address(self) -> str:
        """HOST:PORT of the TLS proxy."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def start(self, **variables: str) -> None:
        """Start the processes and wait until they answer.

        Args:
            variables: Further environment variables, for the ServerApp.

        Raises:
            TrainingError: A process does not start; the message contains its output.
            OutputError: The folder cannot be written.
        """
        try:
            self._write_files()
        except OSError as error:
            raise OutputError(f"{self.folder}: cannot be written: {error.strerror}.") from error
        self._sockets = TemporaryFolder()
        self._variables = environment(
            self.folder / "flwr",
            **variables,
            **{POLL_INTERVAL: "0.5", SOCKET: str(self._sockets.path / "superlink")},
        )
        try:
            self._start_missing("superlink")
            self._wait("superlink")
            self.names = self._register()
            # Only after the keys are registered: an earlier party would be refused as unknown.
            self._start_missing("front")
            self._wait("front")
        except BaseException:
            self.close()
            raise
        self._watcher = threading.Thread(target=self._watch, name="superlink", daemon=True)
        self._watcher.start()

    def close(self) -> None:
        """End the superlink, the TLS proxy and the processes that they started."""
        self._closing.set()
        if self._watcher is not None:
            self._watcher.join()
        with self._lock:
            # The proxy first; otherwise parties would get errors that the superlink is gone.
            for name in ("front", "superlink"):
                if name in self._children:
                    self._children.pop(name).end()
        if self._sockets is not None:
            self._sockets.cleanup()

    def start_run(self) -> str:
        """Start a run of the ServerApp, after stopping the previous one; return the run's ID.

        Raises:
            TrainingError: Flower does not start it.
        """
        self._wait("superlink")
        before = self.folder / "run"
        if before.exists():
            # The run's process is gone, perhaps with a killed superlink. Flower would treat the run
            # as active for another 50 s, and deliver messages whose answers are no longer needed.
            with contextlib.suppress(TrainingError):
                ask_flwr(["stop", before.read_text(), _CONNECTION], self._variables)
        app = flower_app.write(self.folder)
        run: str = ask_flwr(["run", str(app), _CONNECTION], self._variables)["run-id"]
        _write(before, run)
        return run

    def run_status(self, run: str) -> tuple[str, str]:
        """Return a run's status and its details, in Flower's words.

        Raises:
            TrainingError: Flower does not report it.
        """
        answer = ask_flwr(["ls", _CONNECTION, "--run-id", run], self._variables)
        return answer["runs"][0]["status"], answer["runs"][0]["status-details"]

    def _write_files(self) -> None:
        # The database holds the parties' messages and is created with the user's umask, so the
        # folder must be private.
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        home = self.folder / "flwr"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        # May be left from another version.
        shutil.rmtree(home / "apps", ignore_errors=True)
        if not (self.folder / "state.db").exists():
            # Without the database, the registered nodes are gone as well.
            (self.folder / "nodes.json").unlink(missing_ok=True)
        write_commands(self.folder / "bin", {name: unix_socket_command(name) for name in _STARTED})
        trust = (
            "insecure = true"
            if self._keys is None
            else f"root-certificates = {json.dumps(str(self._keys.ca.resolve()))}"
        )
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{_CONNECTION}"\n\n[superlink.{_CONNECTION}]\n'
            f'address = "{NOWHERE_HOST}:{NOWHERE_PORT}"\n{trust}\n'
        )

    def _start_missing(self, *names: str) -> None:
        """Start those of the named processes that do not run yet, or have died."""
        commands = {"superlink": self._superlink_command, "front": self._front_command}
        for name in names:
            child = self._children.get(name)
            if child is None or not child.is_alive:
                if child is not None:
                    _log.warning("The %s died and is being restarted.", name)
                    # Its children are ended with it.
                    child.end()
                log = self.folder / f"{name}.log"
                # Flower can start only the programs in this folder.
                variables = {**self._variables, "PATH": str(self.folder / "bin")}
                self._children[name] = Child(commands[name](), variables, log)

    def _superlink_command(self) -> list[str]:
        command = [
            *(*self._superlink, "--host", NOWHERE_HOST, "--port", str(NOWHERE_PORT)),
            *("--database", str(self.folder / "state.db")),
            "--disable-runtime-dependency-installation",
        ]
        if self._keys is None:
            return [*command, "--insecure"]
        return [
            *command,
            *("--ssl-ca-certfile", str(self._keys.ca)),
            *("--ssl-certfile", str(self._keys.certificate)),
            *("--ssl-keyfile", str(self._keys.key)),
            "--enable-supernode-auth",
        ]

    def _front_command(self) -> list[str]:
        command = [
            # -P: modules in the working directory must not shadow libraries.
            *(sys.executable, "-P", "-m", _FRONT_MODULE, f"--host={self.host}"),
            *(f"--port={self.port}", f"--upstream={self._scheme}://{NOWHERE_HOST}"),
            f"--upstream_socket={self._variables[SOCKET]}",
        ]
        if self._keys is None:
            return command
        return [
            *command,
            *(f"--ca={self._keys.ca}", f"--certificate={self._keys.certificate}"),
            f"--key={self._keys.key}",
        ]

    @property
    def _scheme(self) -> str:
        return "http" if self._keys is None else "https"

    def _superlink_answers(self) -> bool:
        with contextlib.suppress(OSError):
            # It listens only once it has started.
            wire.connect(Path(self._variables[SOCKET]), _CONNECT_S).close()
            return True
        return False

    def _front_answers(self) -> bool:
        # A wildcard address is not connectable; loopback is.
        near = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(  # noqa: S104 - compared
            self.host, f"[{self.host}]" if ":" in self.host else self.host
        )
        context = None
        if self._keys is not None:
            context = ssl.create_default_context(cafile=self._keys.ca)
            # It is our own process on this machine; the certificate has the name that parties use.
            context.check_hostname = False
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        url = f"{self._scheme}://{near}:{self.port}/health"
        with contextlib.suppress(OSError), opener.open(url, timeout=_CONNECT_S):
            return True
        return False

    def _wait(self, name: str) -> None:
        """Wait until a child process answers.

        Raises:
            TrainingError: The process does not answer in time, or it dies.
        """
        answers = {"superlink": self._superlink_answers, "front": self._front_answers}[name]
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s:
            if answers():
                return
            child = self._children.get(name)
            if child is None or (self._watcher is None and not child.is_alive):
                break
            time.sleep(_POLL_S)
        child = self._children.get(name)
        output = child.output().strip() if child is not None else "it was stopped"
        where = self._variables[SOCKET] if name == "superlink" else self.address
        raise TrainingError(
            f"The {name} of the federation does not answer at {where}. Its last output (complete "
            f"in {self.folder / f'{name}.log'}):\n{_last(output)}"
        )

    def _register(self) -> dict[int, str]:
        """Register the parties' new keys at the superlink; return node -> party.

        Raises:
            TrainingError: A key cannot be registered, for instance because the superlink knows it
                although `nodes.json` does not.
        """
        if self._keys is None:
            return {}
        file = self.folder / "nodes.json"
        known: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
        # By key, not by name: a party may have got a new key.
        keys = {path.read_text().strip(): (name, path) for name, path in self._keys.parties.items()}
        unknown = sorted(keys.keys() - known.keys())
        # In parallel, because each is a process whose imports take a second of a core.
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            nodes = pool.map(self._register_one, [keys[key] for key in unknown])
            for key, node in zip(unknown, nodes, strict=True):
                known[key] = node
                _write(file, json.dumps(known))
        return {known[key]: name for key, (name, _) in keys.items()}

    def _register_one(self, party: tuple[str, Path]) -> int:
        name, key = party
        answer = ask_flwr(
            ["supernode", "register", str(key.resolve()), _CONNECTION, "--name", name],
            self._variables,
        )
        return int(answer["node-id"])

    def _watch(self) -> None:
        while not self._closing.wait(_WATCH_S):
            with self._lock:
                try:
                    self._start_missing("superlink", "front")
                except OSError as error:
                    _log.error("A Flower process cannot be started: %s", error)


def _write(file: Path, content: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(content)
    with new.open("rb") as written:
        os.fsync(written.fileno())
    new.replace(file)


def _last(output: str) -> str:
    return "\n".join(f"  {line}" for line in output.splitlines()[-12:])


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
