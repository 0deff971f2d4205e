"""The aggregator's part of Flower: a superlink, the front before it, and the runs it is given.

    FOLDER/state.db        what the superlink knows; it survives being killed
    FOLDER/nodes.json      which node is which party's, written when its key is registered
    FOLDER/run             the run that was started last
    FOLDER/flwr/           Flower's own folder
    FOLDER/bin/            all commands that the superlink can start: two
    FOLDER/*.log           what the processes print

The superlink itself listens on a unix socket in a folder of its own (`local.py`). What dies is
started again, with the same port, socket and database.

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

from elasticdl.engines.federated import wire
from elasticdl.engines.federated.flower import fab
from elasticdl.engines.federated.flower.commands import (
    NOWHERE_HOST,
    NOWHERE_PORT,
    POLL_INTERVAL,
    Child,
    ask_flwr,
    enclosed,
    environment,
    free_port,
    write_commands,
)
from elasticdl.engines.federated.flower.words import SOCKET
from elasticdl.errors import OutputError, TrainingError, UsageError
from elasticdl.scratch import TemporaryFolder

if TYPE_CHECKING:
    from elasticdl.engines.federated.flower.keys import AggregatorKeys

_CONNECTION = "elasticdl"
_START_S = 60.0
_POLL_S = 0.05
_WATCH_S = 0.2
_FRONT_MODULE = "elasticdl.engines.federated.flower.front"
# All that a superlink may start.
_STARTED = ("flower-superexec", "flwr-serverapp")
_CONNECT_S = 1.0

_log = logging.getLogger("elasticdl")


class Superlink:
    """See the module.

    Args:
        folder: For its files; the same one for the same federation, so that it goes on.
        keys: Certificates and public keys. None: plain HTTP, and only on this machine.
        host: The address that parties reach, for the front to listen on.
        port: Its port; 0 for one that is free.

    Raises:
        UsageError: Without keys, the host is not this machine's own.
        MissingExtraError: Flower is not installed.
    """

    def __init__(
        self, folder: Path, keys: AggregatorKeys | None, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        if keys is None and not _is_local(host):
            raise UsageError(
                f"Without keys, everyone who reaches {host} would be served, and unencrypted. "
                "Make keys with `elasticdl federated keys`, or listen on 127.0.0.1."
            )
        self.folder = folder
        self.host = host
        self.port = port or free_port()
        # Which node is which party's; empty without keys.
        self.names: Mapping[int, str] = {}
        self._keys = keys
        self._superlink = enclosed("flower-superlink")
        # Short: the path of a socket has room for 107 characters.
        self._sockets: TemporaryFolder | None = None
        self._variables: dict[str, str] = {}
        self._children: dict[str, Child] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None

    @property
    def address(self) -> str:
        """HOST:PORT of the front."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def start(self, **variables: str) -> None:
        """Start it and wait until it answers.

        Args:
            variables: For the environment of the ServerApp.

        Raises:
            TrainingError: It does not start; the message has what Flower says.
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
            # Not before the keys are known: who is too early would be told that he is a stranger.
            self._start_missing("front")
            self._wait("front")
        except BaseException:
            self.close()
            raise
        self._watcher = threading.Thread(target=self._watch, name="superlink", daemon=True)
        self._watcher.start()

    def close(self) -> None:
        """End all its processes."""
        self._closing.set()
        if self._watcher is not None:
            self._watcher.join()
        with self._lock:
            # The front first, or parties would be told that there is no superlink.
            for name in ("front", "superlink"):
                if name in self._children:
                    self._children.pop(name).end()
        if self._sockets is not None:
            self._sockets.cleanup()

    def start_run(self) -> str:
        """Start the ServerApp, and end the one that was started before; returns the run's number.

        Raises:
            TrainingError: Flower does not start it.
        """
        self._wait("superlink")
        before = self.folder / "run"
        if before.exists():
            # Its process is gone, perhaps with a superlink that was killed. Flower would count it
            # as running for 50 s more, and give parties messages that nobody waits for.
            with contextlib.suppress(TrainingError):
                ask_flwr(["stop", before.read_text(), _CONNECTION], self._variables)
        app = fab.write(self.folder)
        run: str = ask_flwr(["run", str(app), _CONNECTION], self._variables)["run-id"]
        _write(before, run)
        return run

    def run_status(self, run: str) -> tuple[str, str]:
        """Return Flower's words for how a run is: its status, and details.

        Raises:
            TrainingError: Flower does not say.
        """
        answer = ask_flwr(["ls", _CONNECTION, "--run-id", run], self._variables)
        return answer["runs"][0]["status"], answer["runs"][0]["status-details"]

    def _write_files(self) -> None:
        # The database holds what parties have sent, and is made as the user's umask says.
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        home = self.folder / "flwr"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Left of another version, perhaps.
        shutil.rmtree(home / "apps", ignore_errors=True)
        if not (self.folder / "state.db").exists():
            # Its nodes are gone with it.
            (self.folder / "nodes.json").unlink(missing_ok=True)
        write_commands(self.folder / "bin", {name: enclosed(name) for name in _STARTED})
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
        """Start those that do not run."""
        commands = {"superlink": self._superlink_command, "front": self._front_command}
        for name in names:
            child = self._children.get(name)
            if child is None or not child.is_alive:
                if child is not None:
                    _log.warning("The %s has died and is started again.", name)
                    # Whatever it started is ended with it.
                    child.end()
                log = self.folder / f"{name}.log"
                # What Flower starts, it finds there and nowhere else.
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
            # -P: modules of the folder it runs in must not shadow those of libraries.
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
            # It listens when it has started, and not before.
            wire.connect(Path(self._variables[SOCKET]), _CONNECT_S).close()
            return True
        return False

    def _front_answers(self) -> bool:
        # Who listens everywhere is reached here.
        near = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(  # noqa: S104 - compared
            self.host, f"[{self.host}]" if ":" in self.host else self.host
        )
        context = None
        if self._keys is not None:
            context = ssl.create_default_context(cafile=self._keys.ca)
            # It is ours and on this machine; the name is what parties call it.
            context.check_hostname = False
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        url = f"{self._scheme}://{near}:{self.port}/health"
        with contextlib.suppress(OSError), opener.open(url, timeout=_CONNECT_S):
            return True
        return False

    def _wait(self, name: str) -> None:
        """Wait until a child answers.

        Raises:
            TrainingError: It does not, or it dies.
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
        said = child.said().strip() if child is not None else "it was ended"
        where = self._variables[SOCKET] if name == "superlink" else self.address
        raise TrainingError(
            f"The {name} of the federation does not answer at {where}. "
            f"What it printed last (all of it is in {self.folder / f'{name}.log'}):\n{_last(said)}"
        )

    def _register(self) -> dict[int, str]:
        """Tell the superlink the keys it does not know yet.

        Raises:
            TrainingError: It knows one that we do not know the node of.
        """
        if self._keys is None:
            return {}
        file = self.folder / "nodes.json"
        known: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
        # By the key, not by the name: a party may have been given another one.
        keys = {path.read_text().strip(): (name, path) for name, path in self._keys.parties.items()}
        unknown = sorted(keys.keys() - known.keys())
        # Each is a process that imports for a second of a core.
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
                    _log.error("A process of Flower's cannot be started: %s", error)


def _write(file: Path, content: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(content)
    with new.open("rb") as written:
        os.fsync(written.fileno())
    new.replace(file)


def _last(said: str) -> str:
    return "\n".join(f"  {line}" for line in said.splitlines()[-12:])


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
