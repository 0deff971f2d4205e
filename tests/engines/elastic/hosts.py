"""Several machines on this one: network namespaces on a bridge, each with a Ray of its own.

    h0 --- bridge --- h1        a namespace each for network, processes, mounts and host name;
              |                 the bridge has a network namespace of its own
              +------ h2

So a link can be cut, and what is sent goes nowhere, as with a cable: nobody is told. A host stays
when its Ray is killed, and can start another. Nothing is changed outside of these namespaces.

Callers: `training_on_hosts.py` and the tests that use it.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

NETWORK = "10.77.0"
RAY_PORT = 6379
# Ray takes a host that does not answer for dead after four seconds, by default after 64.
RAY_ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
_PATIENCE_S = 90
# The first process of a host: it keeps the namespaces, and buries whose parents have died.
_FIRST = """
hostname {name}
mount -t tmpfs none {folder}
mount -t tmpfs -o size=512m none /dev/shm
ip link set lo up
echo ready
while :; do sleep 1000 & wait; done
"""


class NoNamespacesError(Exception):
    """This machine, or this user, cannot make network namespaces."""


class Host:
    """One machine.

    Args:
        name: Its host name.
        address: Its address in the network of the hosts.
        namespace: Name of its network namespace.
        cable: The bridge's namespace, and what the other end of its link is called there.
        folder: Where Ray keeps its files; each host sees its own there.
    """

    def __init__(self, name, address, namespace, cable, folder):
        self.name, self.address = name, address
        self._cable, self._folder = cable, folder
        self._unshare = subprocess.Popen(
            [
                *("ip", "netns", "exec", namespace),
                *("unshare", "-m", "-p", "-f", "-u", "--kill-child", "--mount-proc"),
                *("sh", "-ec", _FIRST.format(name=name, folder=folder)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if self._unshare.stdout.readline() != "ready\n":
            self._unshare.kill()
            raise NoNamespacesError(f"{name} did not start: {self._unshare.communicate()[1]}")
        self._first = psutil.Process(self._unshare.pid).children()[0]

    def command(self, *arguments):
        """Return the command that runs these on the host."""
        return ["nsenter", "-a", "-t", str(self._first.pid), *arguments]

    def start_ray(self, *, num_cpus, head=None):
        """Begin to start Ray, in the cluster of `head`; as the head of one where that is None.

        Returns:
            A process for `wait_for_ray`.
        """
        where = ["--head", f"--port={RAY_PORT}", "--include-dashboard=false"]
        if head is not None:
            where = [f"--address={head.address}:{RAY_PORT}"]
        return subprocess.Popen(
            self.command(
                *(sys.executable, "-m", "ray.scripts.scripts", "start", *where),
                *(f"--node-ip-address={self.address}", f"--num-cpus={num_cpus}"),
                *("--object-store-memory=100000000", f"--temp-dir={self._folder}"),
            ),
            env=os.environ | RAY_ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def cut(self):
        """Take the cable out."""
        self._set_link("down")

    def mend(self):
        """Put the cable back."""
        self._set_link("up")

    def _set_link(self, state):
        namespace, link = self._cable
        _run("ip", "-n", namespace, "link", "set", link, state)

    def processes(self, name=None):
        """Return the processes that run on the host, all or those of this name."""
        host = _process_namespace(self._first.pid)
        found = []
        # Not `process_iter`: it keeps names, and Ray's processes change theirs.
        for pid in psutil.pids():
            with contextlib.suppress(OSError, psutil.Error):
                process = psutil.Process(pid)
                inside = _process_namespace(pid) == host and process != self._first
                if inside and name in {None, process.name()}:
                    found.append(process)
        return found

    def kill(self, name=None):
        """Kill the processes of this name, or all; return when they are gone."""
        killed = self.processes(name)
        for process in killed:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(killed, timeout=_PATIENCE_S)

    def has(self, pid):
        """Return whether a process runs whose number on the host is this."""
        there = self.command("test", "-d", f"/proc/{pid}")
        return subprocess.run(there, check=False).returncode == 0

    def close(self):
        """End all that runs on the host."""
        # With the first process of its namespace goes every other.
        with contextlib.suppress(psutil.Error):
            self._first.kill()
        self._unshare.kill()
        self._unshare.communicate()


def wait_for_ray(*starts):
    """Wait until these hosts are in their cluster."""
    for start in starts:
        text, _ = start.communicate(timeout=_PATIENCE_S)
        assert start.returncode == 0, text


@contextlib.contextmanager
def network_of(num_hosts):
    """Make hosts h0, h1 and so on; nothing of them is left at the end.

    Raises:
        NoNamespacesError: They cannot be made here.
    """
    missing = [name for name in ("ip", "unshare", "nsenter") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        raise NoNamespacesError(f"only root can make hosts; commands that are missing: {missing}")
    # Short: the path of a Unix socket has room for a hundred characters.
    folder = Path(tempfile.mkdtemp(prefix="edl", dir="/tmp"))
    mine = f"edl{os.getpid()}"
    with contextlib.ExitStack() as undo:
        undo.callback(folder.rmdir)
        bridge = _make_namespace(f"{mine}-bridge", undo)
        _run("ip", "-n", bridge, "link", "add", "switch", "type", "bridge")
        _run("ip", "-n", bridge, "link", "set", "switch", "up")
        hosts = []
        for number in range(num_hosts):
            name, address = f"h{number}", f"{NETWORK}.{number + 1}"
            host = _make_namespace(f"{mine}-{name}", undo)
            cable = ("link", "add", "eth0", "type", "veth", "peer", "name", name, "netns", bridge)
            _run("ip", "-n", host, *cable)
            _run("ip", "-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
            _run("ip", "-n", host, "link", "set", "eth0", "up")
            _run("ip", "-n", bridge, "link", "set", name, "master", "switch", "up")
            hosts.append(Host(name, address, host, (bridge, name), folder))
            undo.callback(hosts[-1].close)
        yield hosts


def _make_namespace(name, undo):
    _run("ip", "netns", "add", name)
    undo.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
    return name


def _process_namespace(pid):
    return Path(f"/proc/{pid}/ns/pid").readlink()


def _run(*arguments):
    done = subprocess.run(arguments, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise NoNamespacesError(f"{' '.join(arguments)}: {done.stderr.strip()}")


def wait_for(condition, timeout_s=_PATIENCE_S):
    """Wait until it is true; its own assertions end the waiting."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
