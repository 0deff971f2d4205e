"""Where the processes of a run are: Ray on this machine or a cluster of the user's.

Callers: `controller.py`, which also hears from Ray who died.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from elasticdl.engines.elastic.worker import Identity
from elasticdl.engines.elastic.worker_process import WorkerProcess
from elasticdl.errors import UsageError

if TYPE_CHECKING:
    from elasticdl.engines.elastic.pace import Pace
    from elasticdl.engines.elastic.worker import Assignment, Failure
    from elasticdl.engines.elastic.worker_process import Died
    from elasticdl.job import Workers

_LOCALHOST = "127.0.0.1"
_KNOCK_TIMEOUT_S = 5.0


class LighthouseProcess:
    """Holds the one Lighthouse, on the driver's machine; Ray ends it with the driver."""

    def start(self, host: str, min_workers: int, pace: Pace) -> str:
        """Return its address."""
        from elasticdl.engines.elastic.quorum import Lighthouse  # noqa: PLC0415 - imports torch

        self._lighthouse = Lighthouse(host, min_workers, pace)
        return self._lighthouse.address


class PlacedWorker(WorkerProcess):
    """A worker that knows where Ray has put it."""

    def __init__(self, run_id: str, assignment: Assignment) -> None:
        self._node = ray.get_runtime_context().get_node_id()
        # Several nodes may be on one machine.
        super().__init__(assignment, f"{run_id}-{self._node[:8]}")

    def prepare(self, *, in_background: bool = False) -> Identity | Failure | Died:
        """See `WorkerProcess`."""
        made = super().prepare(in_background=in_background)
        return replace(made, node=self._node) if isinstance(made, Identity) else made


LighthouseActor: Any = ray.remote(num_cpus=0, max_restarts=0)(LighthouseProcess)
# A question is answered in a thread of its own, whatever the training does.
WorkerActor: Any = ray.remote(num_cpus=1, max_restarts=0, concurrency_groups={"watch": 2})(  # type: ignore[call-overload]
    PlacedWorker
)


def here() -> Any:
    """Return the strategy that places an actor on the driver's machine."""
    node = ray.get_runtime_context().get_node_id()
    return NodeAffinitySchedulingStrategy(node, soft=False)


def ask(actor: Any, method: str, *args: Any, **named: Any) -> Any:
    """Call a worker's method beside what it is doing; returns the answer to come."""
    return actor.call.options(concurrency_group="watch").remote(method, *args, **named)


def machines_that_go() -> Collection[str]:
    """Return what Ray calls the machines it was told will be taken away (preempted, drained)."""
    # There is no public call; Ray Train asks in the same way.
    draining: dict[str, int] = ray._private.state.state.get_draining_nodes()  # noqa: SLF001
    return draining


@contextlib.contextmanager
def connected(workers: Workers) -> Iterator[str]:
    """Start Ray here, or join a cluster; yield this machine's address in it."""
    quiet: dict[str, Any] = {
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": "error",
        "namespace": "elasticdl",
    }
    if workers.ray_address is None:
        ray.init(
            address="local",
            # Logical ones: more workers than cores are slow, not wrong.
            num_cpus=workers.max + workers.spare + 1,
            _node_ip_address=_LOCALHOST,
            **quiet,
        )
        # It would carry here what workers print, which is in files; it looks for that ten times
        # a second, and there is no option against it.
        node: Any = ray._private.worker._global_node  # noqa: SLF001
        node.kill_log_monitor(check_alive=False)
        host = _LOCALHOST
    else:
        del quiet["include_dashboard"]
        try:
            _knock(workers.ray_address)
            ray.init(address=workers.ray_address, **quiet)
        except (OSError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"--ray_address={workers.ray_address}: no Ray cluster answers there "
                f"({str(error).splitlines()[0]}). Start one with `ray start --head`, or leave "
                "the option out to train on this machine."
            ) from error
        host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    # Each death of a worker is told by us, in one line; Ray prints a paragraph of its own and
    # has no option against it.
    ray._private.worker.print_to_stdstream = lambda *_, **__: None  # noqa: SLF001
    try:
        yield host
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Find out at once that nobody is there; Ray itself tries for a minute and a half."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_KNOCK_TIMEOUT_S).close()
