"""A federation as a person deploys it: configs that say where everybody is, and the commands.

Callers: tests that give `elasticdl federated` to real processes.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys

import pytest
import yaml
from tests.engines.federated.flower.conftest import wait_until

from elasticdl import federated
from elasticdl.event_file import read_events
from elasticdl.events import RoundFinished

# Ten processes of Flower start at once, beside other tests.
PATIENCE_S = 240


def connect(made, keys=None):
    """Say in the configs of a federation that all are on this machine.

    Args:
        made: The configs, as `federated.init` returns them.
        keys: Folder for certificates and keys, which are made; None: without any.
    """
    names = [path.stem for path in made.parties]
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = {"ip": "127.0.0.1", "port": server.getsockname()[1]}
    if keys is not None:
        federated.make_keys(str(keys), parties=names, hosts=["127.0.0.1"])
        _move_authorities(keys, names)
    files = {
        "ca_certificate": "authority.pem",
        "certificate": "server.crt",
        "private_key": "server.key",
    }
    change(made.aggregator, connection={"info": {**at, **tls(keys, "aggregator", files)}})
    files = {"ca_certificate": "authority.pem", "private_key": "node.key"}
    for path, name in zip(made.parties, names, strict=True):
        info = {"id": name, **tls(keys, f"parties/{name}", files)}
        change(path, connection={"info": info}, aggregator=at)


def _move_authorities(keys, names):
    """Give the certificates of the authority another name, and let those of another take theirs.

    So a federation connects only if each side takes the file that its config names.
    """
    other = keys.with_name(f"{keys.name}-of-others")
    federated.make_keys(str(other), parties=["stranger"], hosts=["127.0.0.1"])
    for folder in ("aggregator", *(f"parties/{name}" for name in names)):
        (keys / folder / "ca.crt").rename(keys / folder / "authority.pem")
        shutil.copy(other / "aggregator/ca.crt", keys / folder / "ca.crt")


def tls(keys, folder, files):
    if keys is None:
        return {}
    return {"tls_config": {key: str(keys / folder / name) for key, name in files.items()}}


def change(path, **sections):
    values = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**values, **sections}))


class Commands:
    """Processes of `elasticdl federated`, ended with the tests."""

    def __init__(self, folder):
        self._folder = folder
        self._started = []

    def start(self, name, *arguments):
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "elasticdl.cli.main", "federated", *map(str, arguments)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        self._started.append(process)
        return process

    def log(self, name):
        return (self._folder / f"{name}.log").read_text()

    def logs(self):
        return "\n".join(
            f"== {path.name}\n{path.read_text()[-2000:]}"
            for path in sorted(self._folder.glob("*.log"))
        )

    def wait_until(self, condition, process):
        """Wait for what a process is to do, as long as it runs."""

        def is_so():
            assert process.poll() is None, self.logs()
            return condition()

        wait_until(is_so, PATIENCE_S)

    def end_of(self, process):
        """Return the exit code of a process that ends by itself."""
        try:
            return process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            pytest.fail(self.logs())

    def end(self):
        for process in self._started:
            if process.poll() is None:
                process.terminate()
        for process in self._started:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                # An aggregator ends after its round, and what failed may have no end.
                process.kill()
                process.wait()


def rounds(output):
    log = output / "events.jsonl"
    if not log.exists():
        return []
    return [event for event in read_events(log) if isinstance(event, RoundFinished)]
