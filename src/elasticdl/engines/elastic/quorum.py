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
import math
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch
import torchft.manager
from torch.distributed import AllreduceOptions, ReduceOp
from torch.distributed import TCPStore as Store  # type: ignore[attr-defined]
from torchft import Manager, ProcessGroupNCCL
from torchft._torchft import ManagerClient
from torchft.checkpointing import CheckpointTransport
from torchft.coordination import LighthouseServer, ManagerServer

from elasticdl.engines.elastic.gloo import CONNECT_SILENCES, NEVER, WatchedGloo
from elasticdl.engines.elastic.peer_watch import PeerWatch, limit_of
from elasticdl.engines.elastic.transport import Fetch, StateServer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from elasticdl.engines.elastic.pace import Pace

_SUM = AllreduceOptions()
_SUM.reduceOp = cast("ReduceOp", ReduceOp.SUM)
# A server that lives answers questions from memory within this.
_ANSWER_S = 5.0
_OWN_VOTE = timedelta(seconds=60)


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
        key: Of the run: states are encrypted with it on their way.
        device: `cpu`, or `cuda` where the buffers lie on a GPU.

    Attributes:
        slowest_s: The longest that a step took; may be set. A sum may wait ten times as long.

    Raises:
        TimeoutError: There is no Lighthouse at that address.
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
        key: bytes,
        device: str = "cpu",
    ) -> None:
        for noisy in ("torchft", "torchft_quorums", "torchft_commits", "torchft_errors"):
            logging.getLogger(noisy).setLevel(logging.CRITICAL)
        self._lighthouse, self._host, self._name, self._pace = lighthouse, host, name, pace
        self._save, self._load, self._key, self._device = save, load, key, device
        self._has_failed = False
        self._found_s = self.slowest_s = 0.0
        self._moved = threading.Condition()
        self._next_lighthouse: str | None = None
        self._watch = PeerWatch(pace.heartbeat_timeout_s, _is_answering)
        self._connect()

    def _connect(self, num_commits: int = 0) -> None:
        """Make all that knows the Lighthouse."""
        pace = self._pace
        answer_timeout = timedelta(
            seconds=max(_ANSWER_S, CONNECT_SILENCES * pace.heartbeat_timeout_s)
        )
        gloo = WatchedGloo(self._host, pace.heartbeat_timeout_s)
        self._group = ProcessGroupNCCL(timeout=NEVER) if self._device == "cuda" else gloo
        self._gloo = gloo
        self._thread = ThreadPoolExecutor(1, "elasticdl-quorum")
        self._transport = _Transport(self._host, pace.transfer_timeout_s, self._key, self._watch)
        self._store = _listening_store(self._host)
        try:
            self._manager = Manager(
                pg=self._group,
                state_dict=self._save,
                load_state_dict=self._load,
                min_replica_size=1,
                rank=0,
                world_size=1,
                store_addr=self._host,
                store_port=self._store.port,
                lighthouse_addr=self._lighthouse,
                replica_id=self._name,
                hostname=self._host,
                timeout=answer_timeout,
                quorum_timeout=timedelta(seconds=pace.quorum_timeout_s),
                connect_timeout=answer_timeout,
                heartbeat_interval=timedelta(seconds=pace.heartbeat_s),
                checkpoint_transport=self._transport,
                # Who joins takes over a peer's state before its first step, and takes part in it.
                use_async_quorum=False,
            )
        except RuntimeError as error:
            raise TimeoutError(f"No Lighthouse answers at {self._lighthouse}: {error}") from error
        self._manager.load_state_dict({"step": num_commits, "batches_committed": 0})
        gloo.manager = self._transport.manager = self._manager._manager.address()  # noqa: SLF001

    @property
    def num_commits(self) -> int:
        """Commits this worker's state has behind it since the job was started."""
        return int(self._manager.current_step())

    def follow(self, lighthouse: str) -> None:
        """Go over to another Lighthouse, the one before being dead; called in any thread."""
        with self._moved:
            self._next_lighthouse = lighthouse
            self._moved.notify_all()

    def begin(self) -> None:
        """Look for the next quorum, in a thread; `save` and `load` are called there."""
        if self._next_lighthouse is not None:
            self._go_over()
        self._search = self._thread.submit(self._manager.start_quorum)

    def wait(self) -> None:
        """Wait until it is found, with a peer's state if this worker is behind.

        As long as the Lighthouse lives, others may be on their way; when it dies, the driver starts
        another, and the workers go on there with the state they have.

        Raises:
            TimeoutError: There is none: the driver is gone.
        """
        while True:
            done = self._wait_for_search()
            if done:
                break
            if self._next_lighthouse is None and not self._lighthouse_answers():
                with self._moved:
                    self._moved.wait_for(
                        lambda: self._next_lighthouse is not None, self._pace.quorum_timeout_s
                    )
                if self._next_lighthouse is None:
                    raise TimeoutError(f"No Lighthouse answers at {self._lighthouse}.")
            self.begin()
        self._found_s = time.monotonic()

    def _wait_for_search(self) -> bool:
        """Wait for the quorum; return False if it is not found, or looked for in vain."""
        with self._moved:
            self._search.add_done_callback(lambda _: self._wake())
            self._moved.wait_for(lambda: self._search.done() or self._next_lighthouse is not None)
        if not self._search.done():
            return False
        try:
            self._search.result()
        except (TimeoutError, RuntimeError):
            return False
        return True

    def _wake(self) -> None:
        with self._moved:
            self._moved.notify_all()

    def _go_over(self) -> None:
        num_commits, before = self.num_commits, (self._manager, self._thread)
        with self._moved:
            self._lighthouse, self._next_lighthouse = cast("str", self._next_lighthouse), None
        self._gloo.abort(errored=False)
        _close(*before)
        self._has_failed = False
        self._connect(num_commits)

    def _lighthouse_answers(self) -> bool:
        host, port = self._lighthouse.removeprefix("http://").rsplit(":", 1)
        try:
            socket.create_connection((host, int(port)), self._pace.heartbeat_timeout_s).close()
        except OSError:
            return False
        return True

    @property
    def is_old(self) -> bool:
        """Whether it is time to ask anew who takes part: somebody may be waiting to join."""
        return time.monotonic() - self._found_s >= self._pace.quorum_interval_s

    def sum(self, buffer: npt.NDArray[np.float32]) -> bool:
        """Add up all workers' buffers in place; return whether that came to an end here."""
        here = torch.from_numpy(buffer)
        # The same memory on a CPU; NCCL adds up what lies on a GPU.
        there = here.to(self._device)
        limit_s, started_s = limit_of(self._pace.sum_timeout_s, self.slowest_s), time.monotonic()
        if self._manager.errored() is None:
            try:
                with self._watch.waiting(self._gloo.peers, self._gloo.cut, limit_s):
                    # Not `Manager.allreduce`: it has two more threads wait for the same.
                    self._group.allreduce([there], _SUM).wait()
                if there is not here:
                    here.copy_(there)
            except RuntimeError as error:
                self._manager.report_error(error)
        if self._manager.errored() is None and self._group.errored() is None:
            self.slowest_s = max(self.slowest_s, time.monotonic() - started_s)
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
        self._has_failed = not self._manager.should_commit(timeout=_OWN_VOTE)
        return not self._has_failed

    def give_up_state(self) -> None:
        """Take over a peer's state at the next quorum, as one that knows nothing."""
        self._manager.load_state_dict({"step": 0, "batches_committed": 0})

    def close(self) -> None:
        """Leave; the others go on when the heartbeats stop."""
        self._watch.close()
        _close(self._manager, self._thread)


def _close(manager: Manager, thread: ThreadPoolExecutor) -> None:
    manager.shutdown(wait=False)
    thread.shutdown(wait=False, cancel_futures=True)


def _is_answering(manager: str, timeout_s: float) -> bool:
    """Return whether a worker's torchft server answers within a time."""
    timeout = timedelta(seconds=timeout_s)
    try:
        # Any of its questions would do; this one it answers from memory.
        ManagerClient(manager, connect_timeout=timeout)._checkpoint_metadata(0, timeout=timeout)  # noqa: SLF001
    except TimeoutError:
        return False
    except RuntimeError as error:
        # An answer as well: it has no state to hand out.
        return "failed to connect" not in str(error)
    return True


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
    """Carries states as bytes over `transport.StateServer`.

    Attributes:
        manager: Address of this worker's torchft server.
    """

    manager = ""

    def __init__(self, host: str, timeout_s: float, key: bytes, watch: PeerWatch) -> None:
        self._server, self._watch = StateServer(host, timeout_s, key), watch
        self._timeout_s, self._key = timeout_s, key

    def metadata(self) -> str:
        return f"{self.manager} {self._server.address}"

    def send_checkpoint(
        self, dst_ranks: list[int], step: int, state_dict: Any, timeout: timedelta
    ) -> None:
        del dst_ranks, timeout
        self._server.publish(step, cast("bytes", state_dict["user"]["default"]))

    def disallow_checkpoint(self) -> None:
        # Whoever took part in the step has it by now.
        self._server.withdraw()

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:
        del src_rank, timeout
        manager, address = metadata.split(" ")
        fetched = Fetch(address, step, self._timeout_s, self._key)
        with self._watch.waiting([manager], fetched.cut, math.inf):
            data = fetched.read()
        return {
            "user": {"default": data},
            "torchft": {"step": step, "batches_committed": 0},
        }

    def shutdown(self, wait: bool = True) -> None:
        del wait
        self._server.close()
