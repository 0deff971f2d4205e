"""`elasticdl train` on machines of this one, with its workers on other ones than the driver.

The machines are network namespaces (`hosts.py`) or containers (`container_hosts.py`).

Each update is written down with its worker, so that one which goes on by itself is seen even where
it changes nothing.

Callers: `test_hosts.py`, `test_container_hosts.py` and `tests/chaos/test_links.py`.
"""

import time

from tests.engines.elastic.hosts import RAY_ENVIRONMENT, RAY_PORT, wait_for, wait_for_ray
from tests.engines.elastic.training import MINIBATCH_SIZE, Training, counting_and, write_numbers

# More than one host has room for.
NUM_WORKERS = 3
CPUS_OF_A_HOST = 2
# A sum may take a minute; a host that is cut off must not hold the others up so long.
GO_ON_S = 20

# Slow, so that it lasts as long as the test needs; quick, as soon as there is a file `hurry`.
WRITES_DOWN_ITS_UPDATES = """
import os
import socket

make_batch, PlainAdd = input_fn, Add


def input_fn(records):
    time.sleep(0 if os.path.exists("{folder}/hurry") else 0.5)
    return make_batch(records)


class Add(PlainAdd):
    def step(self, closure=None):
        super().step()
        with open("{folder}/updates", "a") as updates:
            updates.write(f"{{socket.gethostname()}} {{os.getpid()}} {{time.time()}}\\n")
"""


class TrainingOnHosts(Training):
    """`elasticdl train` on the head, with its workers on the other hosts.

    Args:
        head: Where it runs, and Ray's head as well.
        hosts: Of the workers; others may be added to them.
        folder: Which all hosts see.
        num_epochs: How long it lasts, unless it is to hurry.
        more: More arguments of the command.
        code: More of the model's.
        environment: Variables of the command.
    """

    def __init__(
        self, head, hosts, folder, num_epochs, *more, code="", environment=RAY_ENVIRONMENT
    ):
        self.head, self._hosts, self._folder = head, hosts, folder
        self._updates = folder / "updates"
        self._updates.touch()
        super().__init__(
            folder / "out",
            [
                f"--data={write_numbers(folder / 'numbers.recordio')}",
                f"--minibatch_size={MINIBATCH_SIZE}", f"--num_epochs={num_epochs}",
                f"--num_workers=1..{NUM_WORKERS}", f"--ray_address={head.address}:{RAY_PORT}",
                *more,
            ],
            model=counting_and(folder, WRITES_DOWN_ITS_UPDATES.format(folder=folder) + code),
            run_by=head.command(),
            environment=environment,
        )  # fmt: skip

    def updates(self, since_s):
        """Return (host, process) of each update that was made after a time."""
        lines = (line.split() for line in self._updates.read_text().splitlines())
        return [(name, int(pid)) for name, pid, at_s in lines if float(at_s) > since_s]

    def times_of_updates(self, since_s):
        """Return when updates were made after a time, in order."""
        times_s = (float(line.split()[2]) for line in self._updates.read_text().splitlines())
        return sorted(at_s for at_s in times_s if at_s > since_s)

    def updates_of(self, host, since_s):
        """Return the updates that the workers of a host made after a time."""
        return [update for update in self.updates(since_s) if update[0] == host.name]

    def wait_for_updates_of(self, host, since_s):
        """Return when a worker of a host has made an update after a time."""
        self.wait_for(
            lambda: self.updates_of(host, since_s), f"updates of {host.name}", timeout_s=GO_ON_S
        )

    def wait_for_all(self):
        """Wait until all workers train; returns rank -> host."""
        since_s = time.time()

        def all_train():
            joined = set(self._joined().values())
            return len(joined) == NUM_WORKERS and joined <= set(self.updates(since_s))

        self.wait_for(all_train, "updates of all workers")
        hosts = {host.name: host for host in self._hosts}
        return {rank: hosts[name] for rank, (name, _) in self._joined().items()}

    def wait_for_who_left(self, since):
        """Return when it was told of a worker that left, after so many had."""
        self.wait_for(lambda: len(self.events("worker_left")) > since, "who left")

    def pids_on(self, host):
        """Return the processes of the workers that are on a host."""
        return [pid for name, pid in self._joined().values() if name == host.name]

    def _joined(self):
        workers = {}
        for event in self.events("worker_joined", "worker_left"):
            workers.pop(event["rank"], None)
            if event["event"] == "worker_joined":
                workers[event["rank"]] = (event["host"], event["pid"])
        return workers

    def hurry(self):
        """Train to the end without waiting."""
        (self._folder / "hurry").touch()
        self.wait_for_the_end()


def start_anew(host, head):
    """Do what a kubelet does for a host whose Ray has ended."""
    wait_for(lambda: not host.processes("raylet"))
    host.kill()
    wait_for_ray(host.start_ray(num_cpus=CPUS_OF_A_HOST, head=head))
