"""Where the processes of a run are: Ray on this machine or a cluster of the user's.

Callers: `controller.py`, which also hears from Ray who died.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from elasticdl.data.wording import counted
from elasticdl.engines.elastic.ray_cluster import ConnectedRay, joined_cluster, local_ray
from elasticdl.engines.elastic.worker import Identity
from elasticdl.engines.elastic.worker_process import WorkerProcess
from elasticdl.errors import UsageError

if TYPE_CHECKING:
    from elasticdl.engines.elastic.pace import Pace
    from elasticdl.engines.elastic.worker import Assignment, Failure
    from elasticdl.engines.elastic.worker_process import Died
    from elasticdl.job import Workers


class LighthouseProcess:
    """Holds the one Lighthouse, on the driver's machine; Ray ends it with the driver."""

    def start(self, host: str, min_workers: int, pace: Pace) -> str:
        """Return its address."""
        from elasticdl.engines.elastic.quorum import Lighthouse  # noqa: PLC0415 - imports torch

        self._lighthouse = Lighthouse(host, min_workers, pace)
        return self._lighthouse.address

    def is_alive(self) -> bool:
        """Answer."""
        return True


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
def connected(workers: Workers) -> Iterator[ConnectedRay]:
    """Start Ray here, or join a cluster.

    Raises:
        UnavailableError: Ray does not start on this machine, or no cluster is at the address.
        UsageError: The address is none, or the cluster does not accept the token.
    """
    if workers.ray_address is None:
        # Logical cores: more workers than cores are slow, not wrong.
        cluster = local_ray(workers.max + workers.spare + 1)
    else:
        cluster = joined_cluster(workers.ray_address)
    with cluster as connection:
        if workers.ray_address is None:
            _check_gpus(workers)
        # A worker's death is an event of ours, in one line; Ray prints a paragraph of its own and
        # has no option against it.
        ray._private.worker.print_to_stdstream = lambda *_, **__: None  # noqa: SLF001
        yield connection


def _check_gpus(workers: Workers) -> None:
    """Raise if this machine will never have the GPUs for the least number of workers."""
    resources: Any = ray.cluster_resources()  # type: ignore[no-untyped-call]
    there, wanted = int(resources.get("GPU", 0)), workers.min * workers.gpus
    if there < wanted:
        raise UsageError(
            f"--gpus_per_worker={workers.gpus}: {counted(workers.min, 'worker')} need {wanted} and "
            f"Ray finds {there} GPUs on this machine. Train on fewer workers, or on a cluster with "
            "--ray_address or --cluster."
        )
