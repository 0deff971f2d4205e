"""Worker of an elastic run: prepares, waits for a rank, trains, and reports to the controller.

    prepare()   create the model and compile every step on an example, while others still train
    run(...)    take a rank, join the other workers, train to the end
    report(...) answer the controller from a second thread, even while the first one is busy

Errors are returned instead of raised, because many exceptions cannot be pickled between processes.

Callers: `worker_process.py`; through it the controller calls the methods.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl import errors, tracebacks
from elasticdl.data.batch import repeated
from elasticdl.engines.elastic import state_transfer
from elasticdl.engines.elastic.commit_decision import first_lineage
from elasticdl.engines.elastic.committer import ElasticCommitter, SupersededError
from elasticdl.engines.elastic.crash_note import CrashNote
from elasticdl.engines.elastic.event_buffer import (
    CommitId,
    EventBuffer,
    SnapshotBuffer,
    StateSnapshot,
    WorkerReport,
)
from elasticdl.engines.elastic.index_transfer import receive
from elasticdl.engines.elastic.low_priority import low_priority
from elasticdl.engines.elastic.peer_watch import limit_of
from elasticdl.engines.elastic.worker_warnings import WarningLog
from elasticdl.engines.feed import TrainingBatch, training_batches
from elasticdl.engines.loop import Loop
from elasticdl.engines.progress_bar import Silent
from elasticdl.engines.training_context import TrainingContext, open_context
from elasticdl.engines.user_calls import overdue
from elasticdl.errors import ElasticDLError, TrainingError, ended_by_user, kind_of
from elasticdl.sharding.left_out import BatchId
from elasticdl.training.create import limit_threads, quiet_frameworks, start_threads
from elasticdl.training.trainer import SharesChecks

if TYPE_CHECKING:
    from elasticdl.artifacts.checkpoint_store import Checkpoint
    from elasticdl.data.batch import Batch
    from elasticdl.engines.elastic.allreduce import Quorum
    from elasticdl.engines.elastic.index_transfer import SentIndexes
    from elasticdl.engines.elastic.timeouts import Timeouts
    from elasticdl.engines.feed import Validation
    from elasticdl.job import Job
    from elasticdl.sharding.epoch_order import ShardPlan
    from elasticdl.sharding.ledger import Ledger, ShardLease


@dataclass(frozen=True, eq=False)
class Assignment:
    """Settings that every worker of a run receives.

    Attributes:
        job: The job.
        plan: The shard plan of the data.
        metadata: Metadata of every checkpoint: the shard plan and a description of the data.
        code: The user's code: path within the zoo -> content; None if it is an installed package.
        num_ranks: Maximum number of workers.
        num_threads: Compute threads of a worker.
        framework: Framework of the model.
        timeouts: Timeouts of the run.
        key: Encrypts the model states that workers send each other.
        indexes: Indexes that the driver found when it opened the data. Data that has no index here
            is opened by the worker itself, as the driver did.
        is_resumed: Whether the run began with a checkpoint.
    """

    job: Job
    plan: ShardPlan
    metadata: Mapping[str, Any]
    code: Mapping[str, bytes] | None
    num_ranks: int
    num_threads: int
    framework: str
    timeouts: Timeouts
    key: bytes = field(repr=False)
    indexes: SentIndexes = field(default_factory=dict, repr=False)
    is_resumed: bool = False


@dataclass(frozen=True)
class InitialState:
    """A worker's rank, and the state in which it starts if no peer can send it one.

    Attributes:
        rank: Rank of the worker.
        incarnation: Number of its process in the job.
        generation: Number of the job's start.
        round: Number of the round within that start. A new round begins when all workers have to
            resume from a checkpoint.
        lighthouse: Address of the Lighthouse, the server that decides which workers take part in
            the next step.
        checkpoint: Checkpoint to resume from; None for a new run.
        left_out: Batches whose records the round skips from its start.
        bad: Batches that killed workers and are to be skipped once all workers have agreed on that.
        suspects: (epoch, shard) of each shard with a batch at which more than one worker has died.
            In these shards a worker either prepares or computes one batch at a time, so that it is
            known which batch kills it.
    """

    rank: int
    incarnation: int
    generation: int
    round: int
    lighthouse: str
    checkpoint: Checkpoint | None
    left_out: Sequence[BatchId] = ()
    bad: Sequence[BatchId] = ()
    suspects: Collection[tuple[int, int]] = ()


@dataclass(frozen=True)
class Identity:
    """Machine and process of a worker.

    Attributes:
        host: Name of its machine, for display.
        pid: Process ID.
        node: Ray's ID of the machine; empty outside Ray.
    """

    host: str
    pid: int
    node: str = ""


@dataclass(frozen=True)
class WorkerExit:
    """Result of a worker that ended although the job continues.

    A newer process has taken over its rank, or the driver is gone.

    Attributes:
        reason: Name of the exception that ended it.
    """

    reason: str


@dataclass(frozen=True)
class WorkerFailure:
    """An error that ends the job, returned as a value instead of being raised.

    Attributes:
        kind: Name of a class in `errors` (see `errors.kind_of`), or of another exception.
        message: Message of the error.
        is_trained: Whether the error occurred after the last step, such as in a callback's
            `on_train_end`. `Worker.final` then returns the trained state.
    """

    kind: str
    message: str
    is_trained: bool = False

    def to_error(self) -> ElasticDLError:
        """Recreate the error in the driver, from the class's name and the message."""
        kind = getattr(errors, self.kind, TrainingError)
        known = isinstance(kind, type) and issubclass(kind, ElasticDLError)
        error: ElasticDLError = ElasticDLError.__new__(kind if known else TrainingError)
        # The message is complete; the constructor would change it.
        Exception.__init__(error, self.message)
        return error


def job_error(error: BaseException) -> ElasticDLError:
    """Convert an exception of a worker's process into the error that ends the job.

    This is the exception itself if it is an `ElasticDLError`, and an error that says so if user
    code tried to end the process, as by `sys.exit()`.

    Raises:
        BaseException: The exception itself, if it is neither of these.
    """
    if isinstance(error, ElasticDLError):
        return error
    of_user = None if isinstance(error, Exception) else ended_by_user(error)
    if of_user is None:
        raise error
    return of_user


class Worker:
    """One of the workers that train in a run; see the module docstring. The controller calls it.

    Args:
        assignment: Settings of the run.
        note: Records what this process is working on, to be read after its death.
        warnings: Collects the warnings that ElasticDL logs in this process. The caller attaches it
            to the logger.
    """

    def __init__(
        self,
        assignment: Assignment,
        note: CrashNote | None = None,
        warnings: WarningLog | None = None,
    ) -> None:
        self._assignment, self._note = assignment, note or CrashNote()
        limit_threads(assignment.num_threads)
        # Before PyTorch is imported: every worker needs it, at least for the sums.
        quiet_frameworks()
        self._loop: Loop | None = None
        self._code: Path | None = None
        self._final: StateSnapshot | None = None
        self._snapshots: SnapshotBuffer | None = None
        self._history: EventBuffer | None = None
        self._committer: ElasticCommitter | None = None
        self._ranks_lost: list[int] = []
        self._bad: list[BatchId] = []
        self._quorum: Quorum | None = None
        self._lighthouse: str | None = None
        self._warnings = warnings or WarningLog()

    # --- in the main thread ------------------------------------------------------------------

    def prepare(self, *, in_background: bool = False) -> Identity | WorkerFailure:
        """Create the model and compile its training and evaluation steps.

        Args:
            in_background: Whether to work at low priority, because all ranks are already taken.

        Returns:
            The worker's machine and process; a `WorkerFailure` if the model cannot be created.
        """
        try:
            if in_background:
                start_threads()
                low_priority(self._prepare)
            else:
                self._prepare()
        except BaseException as error:  # noqa: BLE001 - user code may call `sys.exit()`
            return self._failure(job_error(error))
        return Identity(socket.gethostname(), os.getpid())

    def run(self, start: InitialState) -> WorkerFailure | WorkerExit | None:
        """Train under a rank to the end of the job.

        Args:
            start: The rank, and the state to start in if no other worker can send a newer one.

        Returns:
            `WorkerFailure` for an error that ends the job; `WorkerExit` if a newer process has the
            rank or the driver is gone; None if the job is done.
        """
        try:
            self._train(start)
        except (SupersededError, TimeoutError) as error:
            return WorkerExit(type(error).__name__)
        except BaseException as error:  # noqa: BLE001 - user code may call `sys.exit()`
            return self._failure(job_error(error))
        return None

    # --- in other threads ---------------------------------------------------------------------

    def report(
        self, known: CommitId | None, *, with_events: bool
    ) -> WorkerReport | WorkerFailure | None:
        """Report the progress of this worker.

        Args:
            known: The last commit whose events the controller has; None if it has none.
            with_events: Whether the report includes the events after `known`.

        Returns:
            The report; None before the worker has a rank; a `WorkerFailure`, which ends the job, if
            a user function does not return.
        """
        limit = functools.partial(limit_of, self._assignment.timeouts.batch_timeout_s)
        stuck = overdue(limit, "--batch_timeout")
        if stuck is not None:
            return self._failure(stuck)
        if self._history is None or self._snapshots is None or self._loop is None:
            return None
        assert self._committer is not None  # noqa: S101 - prepared
        continues, confirmed, events = self._history.since(known)
        return WorkerReport(
            point=self._history.point,
            confirmed=confirmed,
            continues=continues,
            events=events if with_events else (),
            ranks=self._committer.ranks,
            step=self._loop.trainer.step,
            has_snapshot=self._snapshots.next_to_fetch(confirmed) is not None,
            doing=self._committer.doing,
            doing_s=time.monotonic() - self._committer.doing_since_s,
            slowest_s=self._committer.slowest_s,
            warnings=[self._with_users_paths(text) for text in self._warnings.texts],
        )

    def request_snapshot(self) -> None:
        """Request a checkpoint of the state after the next commit; `take_snapshot` returns it."""
        if self._snapshots is not None:
            self._snapshots.requested = True

    def take_snapshot(self, confirmed: CommitId) -> StateSnapshot | None:
        """Return the next checkpoint for the controller to save.

        Checkpoints whose model was the best so far, by the job's `best_metric`, come first, in the
        order in which they were made, so that none of them is skipped. If none of them is waiting,
        the newest checkpoint is returned, because only the latest state is needed. The returned
        checkpoint and all older ones are removed from this worker's buffer.

        Args:
            confirmed: The last commit that is known to be final. Checkpoints of later commits are
                left for a later call.

        Returns:
            The checkpoint; None if none is left up to `confirmed`.
        """
        return None if self._snapshots is None else self._snapshots.take(confirmed)

    def final(self) -> StateSnapshot:
        """Return the state after the last step.

        Call this only after `run` has returned None, or a `WorkerFailure` that `is_trained`.
        """
        assert self._final is not None  # noqa: S101 - `run` has returned
        return self._final

    def lost(self, rank: int) -> None:
        """Record that the worker of another rank is dead; a following commit releases its lease."""
        self._ranks_lost.append(rank)

    def leave_out(self, bad: Sequence[BatchId], suspects: Collection[tuple[int, int]]) -> None:
        """Record which batches have killed workers, so that this worker stops training on them.

        It may be called in another thread while the worker trains.

        Args:
            bad: Batches to be skipped once all workers have agreed on that. They are added to those
                of earlier calls.
            suspects: (epoch, shard) of all shards in which to work on one batch at a time; see
                `InitialState`. They replace those of an earlier call.
        """
        # Takes effect before the next batch is prepared, in the thread that prepares batches.
        self._bad += [batch for batch in bad if batch not in self._bad]
        self._note.suspects = suspects
        if self._committer is not None:
            self._committer.leave_out(bad)

    def follow(self, lighthouse: str) -> None:
        """Switch to another Lighthouse because the previous one is dead."""
        self._lighthouse = lighthouse
        if self._quorum is not None:
            self._quorum.follow(lighthouse)

    # --- the rest ----------------------------------------------------------------------------

    def _train(self, start: InitialState) -> None:
        from elasticdl.engines.elastic.allreduce import Quorum  # noqa: PLC0415 - after threads are set

        context, committer = self._context, self._committer
        assert committer is not None  # noqa: S101 - prepared
        assignment, options = self._assignment, self._assignment.job.training
        step = start.checkpoint.step if start.checkpoint is not None else 0
        history = EventBuffer(CommitId(0, first_lineage(start.generation, start.round, step)))
        snapshots = SnapshotBuffer(history)
        self._trainer.rank = start.rank
        self._final = None

        self.leave_out(start.bad, start.suspects)

        def open_feed(ledger: Ledger, ranks: Collection[int]) -> Iterator[TrainingBatch]:
            return training_batches(
                functools.partial(self._noted_batches, ledger.left_out),
                ledger,
                rank=start.rank,
                ranks=ranks,
                num_epochs=options.num_epochs,
            )

        loop = Loop(
            options=options,
            trainer=self._trainer,
            committer=committer,
            open_feed=open_feed,
            rank=start.rank,
            num_records=context.num_records,
            events=history,
            checkpoints=snapshots,
            checkpoint_metadata=assignment.metadata,
            reporter=Silent(),
            validation=self._noted_validation(),
            progress=context.initial_progress(),
            safe_point=self._report_lost,
            checkpoint_is_due=lambda: snapshots.requested,
            # No event spans several commits, so that a peer can continue the events at any commit.
            event_interval_s=0.0,
            accumulator=self._accumulator,
            # Without a fixed logical batch it depends on the number of workers.
            num_steps=context.num_steps if self._accumulator is not None else None,
            file_variables=context.file_variables,
            check_epoch=context.check_epoch,
        )
        if start.checkpoint is not None:
            loop.resume(start.checkpoint)
        loop.progress = replace(
            loop.progress, ledger=loop.progress.ledger.leave_out(start.left_out)
        )

        def save() -> bytes:
            checkpoint = loop.checkpoint()
            of_run = {"history": history.to_json(), "checks": self._checks_done()}
            return state_transfer.encode(
                replace(checkpoint, metadata={**checkpoint.metadata, **of_run})
            )

        def take_over(data: bytes) -> None:
            checkpoint = state_transfer.decode(data, "a state received from a peer")
            loop.join(checkpoint)
            history.take_over(checkpoint.metadata["history"])
            if isinstance(self._trainer, SharesChecks):
                self._trainer.take_over_checks(checkpoint.metadata["checks"])
            # That state may not contain batches that this worker had agreed with others to skip.
            committer.leave_out(self._bad)

        lighthouse = self._lighthouse or start.lighthouse
        quorum = Quorum(
            lighthouse=lighthouse,
            host=_host_towards(lighthouse),
            name=f"rank{start.rank}-{start.incarnation}",
            save=lambda: committer.state_for_a_peer(save),
            load=committer.receive,
            timeouts=assignment.timeouts,
            key=assignment.key,
        )
        self._quorum = quorum
        if self._lighthouse not in (None, lighthouse):
            # The driver has announced another Lighthouse in the meantime.
            quorum.follow(self._lighthouse)
        committer.enter(quorum, history, start.rank, start.incarnation, take_over)
        self._history, self._snapshots, self._loop = history, snapshots, loop
        try:
            loop.run()
        except SupersededError:
            quorum.close()
            raise
        checkpoint = loop.checkpoint()
        history.finish()
        # Before `finish`, which calls functions of the user: if one raises, what was trained is
        # still saved.
        self._final = StateSnapshot(
            history.point, checkpoint, loop.is_best, stopped=loop.stopped_early()
        )
        restored = loop.finish()
        published = {
            path: array
            for path, array in self._trainer.state().items()
            if array.tobytes() != checkpoint.state[path].tobytes()
        }
        self._final = replace(self._final, published=published, restored=restored)

    def _checks_done(self) -> dict[str, Any]:
        return self._trainer.checks_done() if isinstance(self._trainer, SharesChecks) else {}

    def _noted_batches(
        self, left_out: Collection[BatchId], epoch: int, lease: ShardLease
    ) -> Iterator[TrainingBatch]:
        """Yield the batches of a lease, recording in the crash note which one is being prepared.

        If a batch must not be prepared yet (`_holds_back`), a `TrainingBatch` whose `batch` is None
        is yielded instead, and the iteration ends.

        Args:
            left_out: Batches whose records are skipped.
            epoch: Epoch, from 0.
            lease: The lease.
        """
        batches = self._context.shard_batches(
            epoch,
            lease,
            tuple(left_out),
            one_by_one=lambda: (epoch, lease.shard) in self._note.suspects,
        )
        number = lease.next_batch
        while True:
            batch = BatchId(epoch, lease.shard, number)
            if self._holds_back(batch, left_out):
                yield TrainingBatch(*batch, None, finished=False)
                return
            with self._note.working("making", *batch):
                fed = next(batches, None)
            if fed is None:
                return
            number = fed.number + 1
            yield fed

    def _holds_back(self, batch: BatchId, left_out: Collection[BatchId]) -> bool:
        """Return whether a batch must not be prepared yet, because it or its shard killed workers.

        It must not if the workers have yet to agree to skip it, or if it belongs to a suspect shard
        of the next epoch: the record that kills is found in this epoch first.

        Args:
            batch: The batch.
            left_out: Batches that all workers have agreed to skip.
        """
        if batch in self._bad and batch not in left_out:
            # Wait until all workers have agreed to skip it.
            return True
        if (batch.epoch, batch.shard) not in self._note.suspects or self._loop is None:
            return False
        # Do not read ahead into the next epoch: the same record kills in this epoch first, and is
        # then skipped in the next one as well.
        return batch.epoch > self._loop.progress.ledger.epoch

    def _noted_validation(self) -> Validation | None:
        """Return validation data that records in the crash note which shard is being read.

        The result is None if there is no validation data.
        """
        validation, note = self._context.validation, self._note
        if validation is None:
            return None

        def batches(shard: int) -> Iterator[Batch]:
            with note.working("evaluating", 0, shard):
                yield from validation.batches(shard)

        return replace(validation, batches=batches)

    def _report_lost(self) -> None:
        while self._ranks_lost:
            assert self._committer is not None  # noqa: S101 - it trains
            self._committer.report_lost(self._ranks_lost.pop())

    def _prepare(self) -> None:
        # Imported here, where no other worker waits for it.
        import elasticdl.engines.elastic.allreduce  # noqa: F401, PLC0415 - as in _train

        assignment = self._assignment
        code = None
        if assignment.code is not None:
            code = Path(tempfile.mkdtemp(), "zoo")
            for name, content in assignment.code.items():
                file = code / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
        self._code = code
        self._context: TrainingContext = open_context(
            assignment.job,
            code=code,
            plan=assignment.plan,
            world_size=assignment.num_ranks,
            indexes=receive(assignment.indexes),
        )[0]
        self._trainer = self._context.create_trainer()
        self._trainer.require_sums("several workers")
        if assignment.num_ranks > 1:
            self._trainer.hooks.check_sharing()
        if self._context.definition.required_exports:
            self._context.why_not_exported(self._trainer)
        self._accumulator = self._context.create_accumulator(self._trainer)
        notes = [] if assignment.is_resumed else self._context.model_notes(self._trainer)
        for note in (self._context.schedule_note(self._trainer, assignment.num_ranks), *notes):
            if note:
                # The driver repeats warnings, each once.
                logging.getLogger("elasticdl").warning("%s", note)
        # A full minibatch, because kernels are chosen and memory is allocated for its size.
        example = repeated(self._context.example(), self._context.minibatch_size)
        self._committer = ElasticCommitter(
            self._trainer,
            example,
            evaluated=self._context.validation_example(),
            num_ranks=assignment.num_ranks,
            accumulator=self._accumulator,
            note=self._note,
        )

    def _failure(self, error: ElasticDLError) -> WorkerFailure:
        return WorkerFailure(
            kind_of(error),
            self._with_users_paths(str(error)),
            is_trained=self._final is not None,
        )

    def _with_users_paths(self, message: str) -> str:
        """Replace paths in this worker's copy of the zoo with the paths of the user's own files."""
        zoo = self._assignment.job.model.zoo if self._assignment.job.model else None
        if zoo is not None and self._code is not None:
            for path in (str(self._code), tracebacks.shown_path(self._code)):
                message = message.replace(path, zoo.rstrip("/"))
        return message


def _host_towards(address: str) -> str:
    """Return this machine's own address that the system uses to connect to another address."""
    host, port = address.removeprefix("http://").rsplit(":", 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Sends no packet: the system only selects the local address it would use.
        probe.connect((host, int(port)))
        name: str = probe.getsockname()[0]
    return name
