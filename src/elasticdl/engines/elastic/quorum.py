"""All that touches torchft: who takes part in a step, the sum over them, and healing.

torchft calls itself alpha, so it is known here and nowhere else. What is used of it: the
Lighthouse (one for each start of a job, in the driver; the only place quorums come from), the
Manager (one a worker), and its Gloo or NCCL process group that is formed anew for each quorum.

Not used: its default transport, which unpickles what a peer sends; its averaging (workers
without a batch would count); its step as a step of ours (it counts commits, empty ones too).

Callers: `controller.py` has the Lighthouse, `committer.py` the Quorum.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.distributed import ReduceOp
from torch.distributed import TCPStore as Store  # type: ignore[attr-defined]
from torchft import Manager, ProcessGroupGloo, ProcessGroupNCCL
from torchft.checkpointing import CheckpointTransport
from torchft.coordination import LighthouseServer

from elasticdl.engines.elastic.transport import StateServer, fetch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from elasticdl.engines.elastic.pace import Pace


class Lighthouse:
    """Says who takes part in the next step.

    It writes a line for each question past Python's streams: it wants a process of its own.

    Args:
        host: Address under which workers reach this machine.
        min_workers: Fewer than these do not train.
        pace: How soon silence is taken for death.
    """

    def __init__(self, host: str, min_workers: int, pace: Pace) -> None:
        self._server = LighthouseServer(
            bind=f"{host}:0",
            min_replicas=min_workers,
            join_timeout_ms=int(pace.join_timeout_s * 1000),
            quorum_tick_ms=10,
            heartbeat_timeout_ms=int(pace.heartbeat_timeout_s * 1000),
        )
        # It answers with the machine's name, which other machines may not know.
        port = self._server.address().rsplit(":", 1)[1]
        self.address = f"http://{host}:{port}"

    def close(self) -> None:
        """Give out no quorum any more."""
        self._server.shutdown()


class Quorum:
    """One worker's part in the agreement on each step.

    Args:
        lighthouse: Its address.
        host: Address under which others reach this worker.
        name: What it is called in logs.
        save: Returns this worker's state as bytes, for one that joins.
        load: Takes over a peer's.
        pace: How soon silence is taken for death.
        device: `cpu`, or `cuda` where the buffers lie on a GPU.
    """

    def __init__(
        self,
        *,
        lighthouse: str,
        host: str,
        name: str,
        save: Callable[[], bytes],
        load: Callable[[bytes], None],
        pace: Pace,
        device: str = "cpu",
    ) -> None:
        for noisy in ("torchft", "torchft_quorums", "torchft_commits", "torchft_errors"):
            logging.getLogger(noisy).setLevel(logging.CRITICAL)
        step_timeout = timedelta(seconds=pace.step_timeout_s)
        group = ProcessGroupNCCL if device == "cuda" else ProcessGroupGloo
        self._device = device
        self._transport = _Transport(host, pace.step_timeout_s)
        self._store = Store(host, 0, is_master=True, wait_for_workers=False)
        self._manager = Manager(
            pg=group(timeout=step_timeout),
            state_dict=save,
            load_state_dict=load,
            min_replica_size=1,
            rank=0,
            world_size=1,
            store_addr=host,
            store_port=self._store.port,
            lighthouse_addr=lighthouse,
            replica_id=name,
            hostname=host,
            timeout=step_timeout,
            quorum_timeout=timedelta(seconds=pace.quorum_timeout_s),
            connect_timeout=step_timeout,
            heartbeat_interval=timedelta(seconds=pace.heartbeat_s),
            checkpoint_transport=self._transport,
            # Who joins takes over a peer's state before its first step, and can take part in it.
            use_async_quorum=False,
        )

    @property
    def num_commits(self) -> int:
        """Commits this worker's state has behind it since the job was started."""
        return int(self._manager.current_step())

    def start(self) -> None:
        """Wait for the next step's quorum, and for a peer's state if this worker is behind.

        Raises:
            TimeoutError, RuntimeError: There is none: the driver is gone.
        """
        self._manager.start_quorum()

    def sum(self, buffer: npt.NDArray[np.float32]) -> bool:
        """Add up all workers' buffers in place; return whether that came to an end here."""
        here = torch.from_numpy(buffer)
        # The same memory on a CPU; NCCL adds up what lies on a GPU.
        there = here.to(self._device)
        self._manager.allreduce(there, reduce_op=ReduceOp.SUM).wait()
        if there is not here:
            here.copy_(there)
        return self._manager.errored() is None

    def vote(self, *, commit: bool) -> bool:
        """End the step; return whether it is committed here."""
        if not commit and self._manager.errored() is None:
            self._manager.report_error(RuntimeError("no agreement"))
        return bool(self._manager.should_commit())

    def give_up_state(self) -> None:
        """Take over a peer's state at the next quorum, as one that knows nothing."""
        self._manager.load_state_dict({"step": 0, "batches_committed": 0})

    def close(self) -> None:
        """Leave; the others go on when the heartbeats stop."""
        self._manager.shutdown(wait=False)


class _Transport(CheckpointTransport[Any]):  # type: ignore[misc]  # torchft has no types
    """Carries states as bytes over `transport.StateServer`."""

    def __init__(self, host: str, timeout_s: float) -> None:
        self._server = StateServer(host, timeout_s)

    def metadata(self) -> str:
        return self._server.address

    def send_checkpoint(
        self, dst_ranks: list[int], step: int, state_dict: Any, timeout: timedelta
    ) -> None:
        del dst_ranks, timeout
        self._server.publish(step, cast("bytes", state_dict["user"]["default"]))

    def disallow_checkpoint(self) -> None:
        # Whoever took part in the step has it by now.
        self._server.withdraw()

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:
        del src_rank
        data = fetch(metadata, step, timeout.total_seconds())
        return {
            "user": {"default": data},
            "torchft": {"step": step, "batches_committed": 0},
        }

    def shutdown(self, wait: bool = True) -> None:
        del wait
        self._server.close()
