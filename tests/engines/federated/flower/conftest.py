"""Real federations: Flower's processes and parties, each a process of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

PARTY = Path(__file__).with_name("party.py")
PATIENCE_S = 60


def wait_until(condition, timeout_s=PATIENCE_S):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(processes):
    return [one for one in processes if _is_alive(one)]


def _is_alive(process):
    # It may end between the two questions.
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def still_alive(processes, timeout_s):
    """Return which of some processes have not ended when the time is over, or [] before."""
    deadline = time.monotonic() + timeout_s
    while (left := alive(processes)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def below(pid, name):
    """Return the processes below one whose command line has a word that ends with a name."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [
            child
            for child in psutil.Process(pid).children(recursive=True)
            if any(word.endswith(name) for word in _words(child))
            and "supervisor.py" not in str(_words(child))
        ]
    return []


def _words(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


class PartyProcess:
    """A party in a process and a folder of its own."""

    def __init__(self, folder, name, address, keys):
        self.folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)
        self._log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-P", PARTY, folder, name, address, keys],
            stdout=self._log,
            stderr=self._log,
        )

    @property
    def log(self):
        return (self.folder / "log").read_text()

    def supernodes(self):
        return below(self.process.pid, "flower-supernode")

    def everything(self):
        return [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(True)]

    def hold(self):
        """Let it answer nothing until it is released."""
        self.release()
        (self.folder / "hold").touch()

    @property
    def is_held(self):
        """Whether it has been asked something that it does not answer."""
        return (self.folder / "held").exists()

    def release(self):
        for name in ("hold", "held"):
            (self.folder / name).unlink(missing_ok=True)

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(30)
        self._log.close()

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        self._log.close()


class Federation:
    """An aggregator's parties, and processes that are parties."""

    def __init__(self, folder, link, parties):
        self.folder = folder
        self.link = link
        self.parties = parties
        self.processes = {}

    def start(self, name, keys=None):
        keys = self.folder / "keys/parties" / name if keys is None else keys
        party = PartyProcess(self.folder / name, name, self.link.address, keys)
        self.processes[name] = party
        return party

    def ask(self, arrays, timeout_s, names=("north", "south"), **facts):
        return {
            name: (arrays, facts)
            for name, arrays, facts in self.parties.ask(
                dict.fromkeys(names, (arrays, facts)), timeout_s
            )
        }

    def flwr(self, *arguments):
        """Return what Flower's own command answers to who started this federation."""
        from elasticdl.engines.federated.flower.commands import ask_flwr

        return ask_flwr(arguments, self.link._variables)

    def flower(self, name):
        """Return this aggregator's processes of a command."""
        return below(os.getpid(), name)


@pytest.fixture
def start_party():
    """Return a function that starts a party; it is ended at the end."""
    with contextlib.ExitStack() as stack:

        def start(folder, name, address, keys):
            party = PartyProcess(folder, name, address, keys)
            stack.callback(party.end)
            return party

        yield start


@pytest.fixture(scope="module")
def federation():
    """Return a federation with keys whose parties `north` and `south` are connected."""
    from elasticdl.engines.federated.flower.exchange import Exchange
    from elasticdl.engines.federated.flower.keys import AggregatorKeys, make_keys
    from elasticdl.engines.federated.flower.superlink import Superlink

    folder = Path(tempfile.mkdtemp(prefix="fl-"))
    make_keys(folder / "keys", ["north", "south", "west", "east"], ["127.0.0.1"])
    link = Superlink(folder / "agg", AggregatorKeys.read(folder / "keys/aggregator"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        one = Federation(folder, link, stack.enter_context(Exchange(link)))
        stack.callback(lambda: [party.end() for party in one.processes.values()])
        one.start("north")
        one.start("south")
        assert list(one.parties.wait_for(2, PATIENCE_S)) == ["north", "south"]
        yield one
