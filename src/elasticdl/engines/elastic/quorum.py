"""All that touches torchft: who takes part in a step, the sum over them, and healing.

torchft calls itself alpha, so it is known here and nowhere else. What is used of it: the
Lighthouse (one for each start of a job, in the driver; the only place quorums come from), the
Manager (one a worker), and its Gloo or NCCL process group that is formed anew for each quorum.

Not used: its default transport, which unpickles what a peer sends; its averaging (workers
without a batch would count); its step as a step of ours (it counts commits, empty ones too).

Callers: `controller.py` has the Lighthouse, `committer.py` the Quorum.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torchft.manager
from torch.distributed import AllreduceOptions, ProcessGroup, ReduceOp
from torch.distributed import ProcessGroupGloo as Gloo
from torch.distributed import TCPStore as Store  # type: ignore[attr-defined]
from torchft import Manager, ProcessGroupGloo, ProcessGroupNCCL
from torchft.checkpointing import CheckpointTransport
from torchft.coordination import LighthouseServer, ManagerServer

from elasticdl.engines.elastic.transport import StateServer, fetch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from elasticdl.engines.elastic.pace import Pace

_SUM = AllreduceOptions()
_SUM.reduceOp = cast("ReduceOp", ReduceOp.SUM)
# So many times the silence that is taken for death the members of a quorum may take to connect.
_CONNECT_SILENCES = 4


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
            # A quorum that is complete needs no tick; this is how soon a timeout is seen.
            quorum_tick_ms=50,
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
        save: Returns this worker's state as bytes, for one that joins; called in a thread.
        load: Takes a peer's; called in a thread.
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
        gloo = _Gloo(step_timeout, host, pace.heartbeat_timeout_s)
        group = ProcessGroupNCCL(timeout=step_timeout) if device == "cuda" else gloo
        self._device, self._group = device, group
        self._has_failed = False
        self._interval_s, self._found_s = pace.quorum_interval_s, 0.0
        self._thread = ThreadPoolExecutor(1, "elasticdl-quorum")
        self._transport = _Transport(host, pace.step_timeout_s)
        self._store = _listening_store(host)
        self._manager = Manager(
            pg=group,
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

    def begin(self) -> None:
        """Look for the next quorum, in a thread; `save` and `load` are called there."""
        self._search = self._thread.submit(self._manager.start_quorum)

    def wait(self) -> None:
        """Wait until it is found, with a peer's state if this worker is behind.

        Raises:
            TimeoutError, RuntimeError: There is none: the driver is gone.
        """
        self._search.result()
        self._found_s = time.monotonic()

    @property
    def is_old(self) -> bool:
        """Whether it is time to ask anew who takes part: somebody may be waiting to join."""
        return time.monotonic() - self._found_s >= self._interval_s

    def sum(self, buffer: npt.NDArray[np.float32]) -> bool:
        """Add up all workers' buffers in place; return whether that came to an end here."""
        here = torch.from_numpy(buffer)
        # The same memory on a CPU; NCCL adds up what lies on a GPU.
        there = here.to(self._device)
        if self._manager.errored() is None:
            try:
                # Not `Manager.allreduce`: it has two more threads wait for the same.
                self._group.allreduce([there], _SUM).wait()
                if there is not here:
                    here.copy_(there)
            except RuntimeError as error:
                self._manager.report_error(error)
        if self._manager.errored() is None and self._group.errored() is None:
            return True
        # A peer may wait for this one's part, and see nothing of who is gone: it learns it from
        # the end of this connection. Else this one would wait for it in the quorum, and it here.
        self._group.abort(errored=False)
        return False

    def vote(self, *, commit: bool) -> bool:
        """End the step; return whether it is committed here."""
        if commit and not self._has_failed:
            # Voting is among the ranks of a replica, of which this one has one: its own word is
            # all there is to it, and not worth two calls over a network.
            self._manager.load_state_dict({"step": self.num_commits + 1, "batches_committed": 0})
            self._transport.disallow_checkpoint()
            return True
        if not commit and self._manager.errored() is None:
            self._manager.report_error(RuntimeError("no agreement"))
        # After a step that failed the members connect anew, until one is told that did not.
        self._has_failed = not self._manager.should_commit()
        return not self._has_failed

    def give_up_state(self) -> None:
        """Take over a peer's state at the next quorum, as one that knows nothing."""
        self._manager.load_state_dict({"step": 0, "batches_committed": 0})

    def close(self) -> None:
        """Leave; the others go on when the heartbeats stop."""
        self._manager.shutdown(wait=False)
        self._thread.shutdown(wait=False, cancel_futures=True)


def _listening_store(host: str) -> Store:
    """Return a store that listens at one address of this machine; by default it takes all."""
    listener = socket.create_server((host, 0))
    port: int = listener.getsockname()[1]
    # The store closes the descriptor.
    return Store(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def _server_at_one_address(**named: Any) -> ManagerServer:
    """Return a Manager's server that listens where the others look for it.

    torchft binds it to every address of the machine and has no option against it.
    """
    port = named["bind"].rsplit(":", 1)[1]
    return ManagerServer(**{**named, "bind": f"{named['hostname']}:{port}"})


torchft.manager.ManagerServer = _server_at_one_address


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


class _Gloo(ProcessGroupGloo):  # type: ignore[misc]  # torchft has no types
    """Gloo that listens where the others look for this worker, and notices that a link is cut.

    By itself it takes the address of this machine's name, which may be one that only this machine
    knows; and it waits for a host that has gone without a word until the step's timeout.

    Args:
        timeout: How long a sum may take.
        host: Address under which others reach this worker.
        silence_s: A host that has answered nothing for so long is taken for lost.
    """

    def __init__(self, timeout: timedelta, host: str, silence_s: float) -> None:
        # A quorum's members are waiting for each other when they connect: that is soon done.
        super().__init__(timeout=timedelta(seconds=_CONNECT_SILENCES * silence_s))
        self._sum_timeout, self._host, self._silence_s = timeout, host, silence_s
        self._known_sockets: Collection[int] = ()

    def configure(self, *args: Any, **named: Any) -> None:
        """Connect with the members of a new quorum."""
        self._known_sockets = set(_open_sockets())
        super().configure(*args, **named)

    def _create_pg(self, store: Any, rank: int, world_size: int) -> ProcessGroup:
        self._watch_links()  # to the store, where the others' addresses are, ...
        # As torchft makes it, but for the address; torch has only private names for all that.
        options = cast("Any", Gloo)._Options()  # noqa: SLF001
        options._timeout = self._timeout  # noqa: SLF001
        interface = os.environ.get("GLOO_SOCKET_IFNAME")
        device = {"interface": interface} if interface else {"hostname": self._host}
        options._devices = [Gloo.create_device(**device)]  # noqa: SLF001
        backend = Gloo(store, rank, world_size, options)
        backend._set_default_timeout(self._sum_timeout)  # noqa: SLF001
        backend._set_sequence_number_for_group()  # noqa: SLF001
        kind = ProcessGroup.BackendType.GLOO
        group = ProcessGroup(store, rank, world_size)
        group._set_default_backend(kind)  # noqa: SLF001
        group._register_backend(torch.device("cpu"), kind, backend)  # noqa: SLF001
        self._watch_links()  # ... and to them.
        return group

    def _watch_links(self) -> None:
        """Let the system end those connections early that were made since `configure` began.

        Gloo has no option for it. Should a stranger's be among them, that one is given up sooner
        as well, when its host is out of reach.
        """
        for inode, number in _open_sockets().items():
            if inode not in self._known_sockets:
                _give_up_after(number, self._silence_s)


def _open_sockets() -> dict[int, int]:
    """Return the sockets of this process: what tells one from another -> its number."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            status = path.stat()
            if stat.S_ISSOCK(status.st_mode):
                found[status.st_ino] = int(path.name)
    return found


def _give_up_after(number: int, silence_s: float) -> None:
    """Let the system end a connection when the other host does not answer for so long.

    The other host's system answers, whatever its processes do: who only computes is not given up.
    """
    # A copy: closing it leaves the connection alone. Its owner may close it at any time.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
        if connection.family in {socket.AF_INET, socket.AF_INET6}:
            # Between two sums nothing is sent, so the system has to ask by itself ...
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
            # ... and what was sent it would repeat for a quarter of an hour.
            timeout_ms = int(silence_s * 1000)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
