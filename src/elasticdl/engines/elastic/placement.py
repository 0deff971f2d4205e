"""Placement of a run's processes: in Ray on this machine or in the user's cluster.

Callers: `controller.py`, `lighthouse.py` and `inference.py`.
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
    from elasticdl.engines.elastic.timeouts import Timeouts
    from elasticdl.engines.elastic.worker import Assignment, WorkerFailure
    from elasticdl.engines.elastic.worker_process import Died
    from elasticdl.job import Workers


class LighthouseProcess:
    """Ray actor that runs torchft's Lighthouse, the server that forms quorums.

    It is placed on the driver's machine. Ray kills it when the driver ends.
    """

    def start(self, host: str, min_workers: int, timeouts: Timeouts) -> str:
        """Start the Lighthouse and return its address."""
        from elasticdl.engines.elastic.allreduce import Lighthouse  # noqa: PLC0415 - imports torch

        self._lighthouse = Lighthouse(host, min_workers, timeouts)
        return self._lighthouse.address

    def is_alive(self) -> bool:
        """Return True, so that any answer shows that the process is alive."""
        return True


class PlacedWorker(WorkerProcess):
    """Ray actor of a worker process; it also reports the node on which Ray has placed it."""

    def __init__(self, run_id: str, assignment: Assignment) -> None:
        self._node = ray.get_runtime_context().get_node_id()
        # The name includes the node, because several nodes may be on one machine.
        super().__init__(assignment, f"{run_id}-{self._node[:8]}")

    def prepare(self, *, in_background: bool = False) -> Identity | WorkerFailure | Died:
        """Start and prepare the worker; see `WorkerProcess.prepare`.

        The returned `Identity` also has the ID of the actor's Ray node.
        """
        made = super().prepare(in_background=in_background)
        return replace(made, node=self._node) if isinstance(made, Identity) else made


LighthouseActor: Any = ray.remote(num_cpus=0, max_restarts=0)(LighthouseProcess)
# Calls in the group `watch` run in separate threads and are answered during training.
WorkerActor: Any = ray.remote(num_cpus=1, max_restarts=0, concurrency_groups={"watch": 2})(  # type: ignore[call-overload]
    PlacedWorker
)


def here() -> Any:
    """Return the Ray scheduling strategy that places an actor on this process's machine."""
    node = ray.get_runtime_context().get_node_id()
    return NodeAffinitySchedulingStrategy(node, soft=False)


def call(actor: Any, method: str, *args: Any, **named: Any) -> Any:
    """Call a method of the worker that a `PlacedWorker` actor has started, even while it trains.

    Args:
        actor: The actor.
        method: Name of a method of `Worker`.
        args: Arguments of the method.
        named: Named arguments of the method.

    Returns:
        A Ray reference to the result.
    """
    return actor.call.options(concurrency_group="watch").remote(method, *args, **named)


def leaving_machines() -> Collection[str]:
    """Return the Ray node IDs of machines that are about to be preempted or drained."""
    # There is no public function; Ray Train uses the same call.
    draining: dict[str, int] = ray._private.state.state.get_draining_nodes()  # noqa: SLF001
    return draining


@contextlib.contextmanager
def connected(workers: Workers) -> Iterator[ConnectedRay]:
    """Context manager that starts Ray on this machine, or joins the user's cluster, for its block.

    Also turns off, for this process, the messages that Ray prints about its processes.

    Raises:
        UnavailableError: Ray does not start on this machine, or no cluster is at the address.
        UsageError: The address is invalid, the cluster does not accept the token, or this machine
            has too few GPUs.
    """
    if workers.ray_address is None:
        # Logical cores: more workers than physical cores are allowed, only slower.
        cluster = local_ray(workers.max + workers.spare + 1)
    else:
        cluster = joined_cluster(workers.ray_address)
    with cluster as connection:
        if workers.ray_address is None:
            _check_gpus(workers)
        # ElasticDL reports a worker's death in one line; Ray prints a paragraph in addition and has
        # no option to turn that off.
        ray._private.worker.print_to_stdstream = lambda *_, **__: None  # noqa: SLF001
        yield connection


def _check_gpus(workers: Workers) -> None:
    """Raise `UsageError` if this machine has too few GPUs for the minimum number of workers."""
    resources: Any = ray.cluster_resources()  # type: ignore[no-untyped-call]
    there, wanted = int(resources.get("GPU", 0)), workers.min * workers.gpus
    if there < wanted:
        raise UsageError(
            f"--gpus_per_worker={workers.gpus}: {counted(workers.min, 'worker')} need {wanted} "
            f"GPUs, but Ray finds {there} on this machine. Use fewer workers, or train on a "
            "cluster with --ray_address or --cluster."
        )
