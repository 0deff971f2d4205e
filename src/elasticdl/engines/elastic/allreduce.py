"""Quorum: the participants of a step, the sum of their gradients, and the transfer of states.

torchft calls itself alpha, so only this module and `gloo.py` use it. They use its Lighthouse (one
for each start of a job, in the driver; it alone forms quorums), its Manager (one per worker), and
its Gloo or NCCL process group, which is formed again for each quorum.

Three parts of torchft are not used: its default transport, which unpickles what a peer sends; its
averaging, which would count workers without a batch; and its step number, which also counts empty
commits.

Callers: the driver runs the Lighthouse (`lighthouse.py`), `committer.py` uses the Quorum.
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
from elasticdl.engines.elastic.state_transfer import Fetch, StateServer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from elasticdl.engines.elastic.timeouts import Timeouts

_SUM = AllreduceOptions()
_SUM.reduceOp = cast("ReduceOp", ReduceOp.SUM)
# A live server answers requests from memory within this time.
_ANSWER_S = 5.0
_OWN_VOTE = timedelta(seconds=60)


class Lighthouse:
    """torchft's server that decides which workers take part in the next step (the quorum).

    Run it in its own process: its native code writes a line to the output for each request.

    Args:
        host: Address under which workers reach this machine.
        min_workers: Minimum number of workers in a quorum.
        timeouts: Timeouts of the run.
    """

    def __init__(self, host: str, min_workers: int, timeouts: Timeouts) -> None:
        self._server = LighthouseServer(
            bind=f"{host}:0",
            min_replicas=min_workers,
            join_timeout_ms=int(timeouts.join_timeout_s * 1000),
            # A complete quorum does not wait for a tick; this only limits how fast a timeout is
            # noticed.
            quorum_tick_ms=50,
            heartbeat_timeout_ms=int(timeouts.heartbeat_timeout_s * 1000),
        )
        # Its own address contains the machine's name, which other machines may not know.
        port = self._server.address().rsplit(":", 1)[1]
        self.address = f"http://{host}:{port}"

    def close(self) -> None:
        """Shut down the server; no more quorums are formed."""
        self._server.shutdown()


class Quorum:
    """One worker's connection to the quorum of each step.

    Args:
        lighthouse: Address of the Lighthouse.
        host: Address under which others reach this worker.
        name: Name of this worker in logs.
        save: Function () -> this worker's state as bytes, for a joining worker; called in a thread.
        load: Function (state of a peer, as bytes) that restores the state; called in a thread.
        timeouts: Timeouts of the run.
        key: Key of the run, which encrypts states in transit.
        device: `cpu`, or `cuda` if the buffers are on a GPU.

    Attributes:
        slowest_s: The longest time in seconds that a batch or an all-reduce has taken on this
            worker. An all-reduce may take ten times as long before it fails. The code that creates
            the object sets the longest time of a batch.

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
        timeouts: Timeouts,
        key: bytes,
        device: str = "cpu",
    ) -> None:
        for noisy in ("torchft", "torchft_quorums", "torchft_commits", "torchft_errors"):
            logging.getLogger(noisy).setLevel(logging.CRITICAL)
        self._lighthouse, self._host, self._name, self._timeouts = lighthouse, host, name, timeouts
        self._save, self._load, self._key, self._device = save, load, key, device
        self._has_failed = False
        self._found_s = self.slowest_s = 0.0
        self._moved = threading.Condition()
        self._next_lighthouse: str | None = None
        self._watch = PeerWatch(timeouts.heartbeat_timeout_s, _is_answering)
        self._connect()

    def _connect(self, num_commits: int = 0) -> None:
        """Connect to the Lighthouse: create the process group and the torchft Manager.

        Args:
            num_commits: Number of commits in this worker's state; not 0 if it switches to another
                Lighthouse during a round.
        """
        timeouts = self._timeouts
        answer_timeout = timedelta(
            seconds=max(_ANSWER_S, CONNECT_SILENCES * timeouts.heartbeat_timeout_s)
        )
        gloo = WatchedGloo(self._host, timeouts.heartbeat_timeout_s)
        self._group = ProcessGroupNCCL(timeout=NEVER) if self._device == "cuda" else gloo
        self._gloo = gloo
        self._thread = ThreadPoolExecutor(1, "elasticdl-quorum")
        self._transport = _Transport(
            self._host, timeouts.transfer_timeout_s, self._key, self._watch
        )
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
                quorum_timeout=timedelta(seconds=timeouts.quorum_timeout_s),
                connect_timeout=answer_timeout,
                heartbeat_interval=timedelta(seconds=timeouts.heartbeat_s),
                checkpoint_transport=self._transport,
                # A joining worker takes over a peer's state before its first step, so that it can
                # take part in that step.
                use_async_quorum=False,
            )
        except RuntimeError as error:
            raise TimeoutError(f"No Lighthouse answers at {self._lighthouse}: {error}") from error
        self._manager.load_state_dict({"step": num_commits, "batches_committed": 0})
        gloo.manager = self._transport.manager = self._manager._manager.address()  # noqa: SLF001

    @property
    def num_commits(self) -> int:
        """Number of commits that have led to this worker's state since the start of the round.

        After `give_up_state` it is 0 until a peer's state is received.
        """
        return int(self._manager.current_step())

    def follow(self, lighthouse: str) -> None:
        """Switch to another Lighthouse because the previous one died. Callable in any thread."""
        with self._moved:
            self._next_lighthouse = lighthouse
            self._moved.notify_all()

    def begin(self) -> None:
        """Start forming the next quorum in a thread; `wait` waits for it.

        The thread calls `save` if a peer needs this worker's state, and `load` if this worker is
        behind.
        """
        if self._next_lighthouse is not None:
            self._go_over()
        self._search = self._thread.submit(self._manager.start_quorum)

    def wait(self) -> None:
        """Wait for the quorum, and for a peer's state if this worker is behind.

        It waits as long as the Lighthouse is alive, because other workers may still join. If the
        Lighthouse dies, the driver starts another one, and the workers keep their state.

        Raises:
            TimeoutError: There is no Lighthouse, because the driver is gone.
        """
        while True:
            done = self._wait_for_search()
            if done:
                break
            if self._next_lighthouse is None and not self._lighthouse_answers():
                with self._moved:
                    self._moved.wait_for(
                        lambda: self._next_lighthouse is not None, self._timeouts.quorum_timeout_s
                    )
                if self._next_lighthouse is None:
                    raise TimeoutError(f"No Lighthouse answers at {self._lighthouse}.")
            self.begin()
        self._found_s = time.monotonic()

    def _wait_for_search(self) -> bool:
        """Wait until the quorum is formed, or until that fails or a new Lighthouse is known.

        Returns:
            Whether the quorum is formed. If not, the caller tries again, with the new Lighthouse if
            any.
        """
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
            socket.create_connection((host, int(port)), self._timeouts.heartbeat_timeout_s).close()
        except OSError:
            return False
        return True

    @property
    def is_old(self) -> bool:
        """Whether it is time for a new quorum, because only a new one admits joining workers."""
        return time.monotonic() - self._found_s >= self._timeouts.quorum_interval_s

    def sum(self, buffer: npt.NDArray[np.float32]) -> bool:
        """Sum a buffer over all workers in place; return whether that succeeded on this worker.

        After a failure, the connections to the other workers are closed, so that their sums fail
        too.
        """
        here = torch.from_numpy(buffer)
        # On a CPU this shares the buffer's memory; NCCL sums tensors on a GPU.
        there = here.to(self._device)
        limit_s, started_s = (
            limit_of(self._timeouts.sum_timeout_s, self.slowest_s),
            time.monotonic(),
        )
        if self._manager.errored() is None:
            try:
                with self._watch.waiting(self._gloo.peers, self._gloo.cut, limit_s):
                    # Not `Manager.allreduce`, which makes two more threads wait for the same sum.
                    self._group.allreduce([there], _SUM).wait()
                if there is not here:
                    here.copy_(there)
            except RuntimeError as error:
                self._manager.report_error(error)
        if self._manager.errored() is None and self._group.errored() is None:
            self.slowest_s = max(self.slowest_s, time.monotonic() - started_s)
            return True
        # A peer may wait for this worker's part without noticing which worker is gone, so close
        # the connections to it. Otherwise the peer would wait here and this worker would wait for
        # the peer in the quorum.
        self._group.abort(errored=False)
        return False

    def vote(self, *, commit: bool) -> bool:
        """End the step on this worker: report to torchft whether it is committed here.

        Args:
            commit: Whether the step is to be committed, by the decision that all workers have drawn
                from their summed votes (`commit_decision.py`).

        Returns:
            Whether the step is committed on this worker.
        """
        if commit and not self._has_failed:
            # torchft votes among the ranks of a replica. This replica has a single rank, whose own
            # vote decides, so the two network calls can be skipped.
            self._manager.load_state_dict({"step": self.num_commits + 1, "batches_committed": 0})
            self._transport.disallow_checkpoint()
            return True
        if not commit and self._manager.errored() is None:
            self._manager.report_error(RuntimeError("no agreement"))
        # After a failed step torchft makes the members reconnect until a success is reported to it.
        self._has_failed = not self._manager.should_commit(timeout=_OWN_VOTE)
        return not self._has_failed

    def give_up_state(self) -> None:
        """Discard this worker's state, so that it takes over a peer's state at the next quorum."""
        self._manager.load_state_dict({"step": 0, "batches_committed": 0})

    def close(self) -> None:
        """Leave the quorum; the other workers continue once this worker's heartbeats stop."""
        self._watch.close()
        _close(self._manager, self._thread)


def _close(manager: Manager, thread: ThreadPoolExecutor) -> None:
    manager.shutdown(wait=False)
    thread.shutdown(wait=False, cancel_futures=True)


def _is_answering(manager: str, timeout_s: float) -> bool:
    """Return whether a worker's torchft server answers within the timeout.

    Args:
        manager: Address of the server.
        timeout_s: Seconds to wait for the answer.
    """
    timeout = timedelta(seconds=timeout_s)
    try:
        # Any request would serve; the server answers this one from memory.
        ManagerClient(manager, connect_timeout=timeout)._checkpoint_metadata(0, timeout=timeout)  # noqa: SLF001
    except TimeoutError:
        return False
    except RuntimeError as error:
        # An error is also an answer: the worker has no state to send.
        return "failed to connect" not in str(error)
    return True


def _listening_store(host: str) -> Store:
    """Return a torch `TCPStore` that listens at one address of this machine, not at all of them."""
    listener = socket.create_server((host, 0))
    port: int = listener.getsockname()[1]
    # The store closes the descriptor.
    return Store(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def _server_at_one_address(**named: Any) -> ManagerServer:
    """Return a torchft server that listens only at the address under which other workers reach it.

    torchft binds it to every address of the machine and has no option to change that.
    """
    port = named["bind"].rsplit(":", 1)[1]
    return ManagerServer(**{**named, "bind": f"{named['hostname']}:{port}"})


torchft.manager.ManagerServer = _server_at_one_address


class _Transport(CheckpointTransport[Any]):  # type: ignore[misc]  # torchft has no types
    """Transport of states to joining workers, which torchft calls; it uses a `StateServer`.

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
        # All participants of the step have the state by now.
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
