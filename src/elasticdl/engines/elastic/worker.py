"""One worker: it prepares itself, waits to be given a slot, trains, and answers questions.

    prepare()   make the model, compile every step on an example: nobody waits for it meanwhile
    run(...)    take a slot, join the others, train to the end
    report(...) answer the controller from a second thread, whatever the first one does

Whatever ends it is returned, since exceptions do not travel well between processes.

Callers: `worker_process.py`; there its methods are called by the controller.
"""

from __future__ import annotations

import functools
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
from elasticdl.engines.elastic import transport
from elasticdl.engines.elastic.agreement import first_lineage
from elasticdl.engines.elastic.committer import ElasticCommitter, SupersededError
from elasticdl.engines.elastic.crash_note import CrashNote
from elasticdl.engines.elastic.niceness import nicely
from elasticdl.engines.elastic.peer_watch import limit_of
from elasticdl.engines.elastic.reports import History, Point, Report, Snapshot, Snapshots
from elasticdl.engines.elastic.sent_index import receive
from elasticdl.engines.elastic.worker_warnings import WarningLog
from elasticdl.engines.feed import FedBatch, training_batches
from elasticdl.engines.loop import Loop
from elasticdl.engines.material import Material, open_material
from elasticdl.engines.progress import Silent
from elasticdl.engines.user_calls import overdue
from elasticdl.errors import ElasticDLError, TrainingError, ended_by_user
from elasticdl.sharding.left_out import BatchId
from elasticdl.training.create import limit_threads, quiet_frameworks, start_threads

if TYPE_CHECKING:
    from elasticdl.artifacts.checkpoint import Checkpoint
    from elasticdl.data.batch import Batch
    from elasticdl.engines.elastic.pace import Pace
    from elasticdl.engines.elastic.quorum import Quorum
    from elasticdl.engines.elastic.sent_index import SentIndexes
    from elasticdl.engines.seams import Validation
    from elasticdl.job import Job
    from elasticdl.sharding.ledger import Ledger, Piece
    from elasticdl.sharding.shard import ShardPlan


@dataclass(frozen=True, eq=False)
class Assignment:
    """What every worker of a run is told.

    Attributes:
        job: What was asked for.
        plan: The cut of the data.
        metadata: What every checkpoint says of plan and data.
        code: The user's code: path within the zoo -> content; None where it is installed.
        num_slots: Most workers there can be.
        num_threads: Threads a worker computes with.
        framework: What the model is made with.
        pace: How soon silence is taken for death.
        key: Encrypts what workers send each other of the model.
        indexes: What the driver found when it opened the data; a worker opens by itself what is
            not in it.
    """

    job: Job
    plan: ShardPlan
    metadata: Mapping[str, Any]
    code: Mapping[str, bytes] | None
    num_slots: int
    num_threads: int
    framework: str
    pace: Pace
    key: bytes = field(repr=False)
    indexes: SentIndexes = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Start:
    """Where a worker begins if no peer has a state for it.

    Attributes:
        slot: Its number.
        incarnation: Which process of the job it is.
        generation: Which start of the job.
        round: Which round of that start.
        lighthouse: Where quorums come from.
        checkpoint: What the run goes on from; None at the very start.
        left_out: Batches whose records the round leaves out from its start.
        bad: Batches that killed workers: all are to leave out their records.
        suspects: (epoch, shard) where workers died at a batch, and do one thing at a time.
    """

    slot: int
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
    """Who a worker is.

    Attributes:
        host: Name of its machine, for people.
        pid: Number of its process.
        node: What Ray calls the machine; empty outside Ray.
    """

    host: str
    pid: int
    node: str = ""


@dataclass(frozen=True)
class Left:
    """It ended because it is not wanted any more, or nobody is there; others go on.

    Attributes:
        reason: Name of the exception it was.
    """

    reason: str


@dataclass(frozen=True)
class Failure:
    """An error that ends the job, as a value.

    Attributes:
        kind: Name of a class in `errors`, or of another exception.
        message: What it said.
    """

    kind: str
    message: str

    def to_error(self) -> ElasticDLError:
        """Return the error it was."""
        kind = getattr(errors, self.kind, TrainingError)
        known = isinstance(kind, type) and issubclass(kind, ElasticDLError)
        error: ElasticDLError = ElasticDLError.__new__(kind if known else TrainingError)
        # The message is whole already; a constructor would make another of it.
        Exception.__init__(error, self.message)
        return error


def job_error(error: BaseException) -> ElasticDLError:
    """Return the error that ends the job for what was raised in a worker's process.

    Raises:
        BaseException: What was given, if it is neither an error of ours nor code of the user's
            that ended the process.
    """
    if isinstance(error, ElasticDLError):
        return error
    of_user = None if isinstance(error, Exception) else ended_by_user(error)
    if of_user is None:
        raise error
    return of_user


class Worker:
    """See the module; its methods are called by the controller.

    Args:
        assignment: What it is to do.
        note: Says after this process has died what it was working on.
        warnings: What it warns of; attached by who owns the process.
    """

    def __init__(
        self,
        assignment: Assignment,
        note: CrashNote | None = None,
        warnings: WarningLog | None = None,
    ) -> None:
        self._assignment, self._note = assignment, note or CrashNote()
        limit_threads(assignment.num_threads)
        # Before PyTorch is imported, which is for the sums at least.
        quiet_frameworks()
        self._loop: Loop | None = None
        self._code: Path | None = None
        self._final: Snapshot | None = None
        self._snapshots: Snapshots | None = None
        self._history: History | None = None
        self._committer: ElasticCommitter | None = None
        self._slots_lost: list[int] = []
        self._bad: list[BatchId] = []
        self._quorum: Quorum | None = None
        self._lighthouse: str | None = None
        self._warnings = warnings or WarningLog()

    # --- in the main thread ------------------------------------------------------------------

    def prepare(self, *, in_background: bool = False) -> Identity | Failure:
        """Make the model and compile its steps.

        Args:
            in_background: Nobody waits for it, so it gives way to those that train here.
        """
        try:
            if in_background:
                start_threads()
                nicely(self._prepare)
            else:
                self._prepare()
        except BaseException as error:  # noqa: BLE001 - `sys.exit()` of the user's, too
            return self._failure(job_error(error))
        return Identity(socket.gethostname(), os.getpid())

    def run(self, start: Start) -> Failure | Left | None:
        """Train under a slot to the end of the job.

        Returns:
            The error that ends the job; that it left, since a younger process has the slot or the
            driver is gone; None if it is done.
        """
        try:
            self._train(start)
        except (SupersededError, TimeoutError) as error:
            return Left(type(error).__name__)
        except BaseException as error:  # noqa: BLE001 - `sys.exit()` of the user's, too
            return self._failure(job_error(error))
        return None

    # --- in threads of their own -------------------------------------------------------------

    def report(self, known: Point | None, *, with_events: bool) -> Report | Failure | None:
        """Tell how far it is; None before it has a slot.

        Args:
            known: Up to where the controller has the events.
            with_events: Whether to hand out those that follow.

        Returns:
            The error that ends the job, if a function of the user's does not return.
        """
        limit = functools.partial(limit_of, self._assignment.pace.batch_timeout_s)
        stuck = overdue(limit, "--batch_timeout")
        if stuck is not None:
            return self._failure(stuck)
        if self._history is None or self._snapshots is None or self._loop is None:
            return None
        assert self._committer is not None  # noqa: S101 - prepared
        continues, confirmed, events = self._history.since(known)
        return Report(
            point=self._history.point,
            confirmed=confirmed,
            continues=continues,
            events=events if with_events else (),
            slots=self._committer.slots,
            step=self._loop.trainer.step,
            has_snapshot=self._snapshots.first_confirmed(confirmed) is not None,
            doing=self._committer.doing,
            doing_s=time.monotonic() - self._committer.doing_since_s,
            slowest_s=self._committer.slowest_s,
            warnings=[self._with_users_paths(text) for text in self._warnings.texts],
        )

    def request_snapshot(self) -> None:
        """Copy the state after the next commit."""
        if self._snapshots is not None:
            self._snapshots.requested = True

    def take_snapshot(self, confirmed: Point) -> Snapshot | None:
        """Return the oldest checkpoint that is confirmed, once."""
        return None if self._snapshots is None else self._snapshots.take(confirmed)

    def final(self) -> Snapshot:
        """Return the state after the last step."""
        assert self._final is not None  # noqa: S101 - `run` has returned
        return self._final

    def lost(self, slot: int) -> None:
        """Hear that a slot's worker is dead."""
        self._slots_lost.append(slot)

    def leave_out(self, bad: Sequence[BatchId], suspects: Collection[tuple[int, int]]) -> None:
        """Hear at which batches workers died; see `Start`."""
        # Before the next batch is made, in the thread that makes them.
        self._bad += [batch for batch in bad if batch not in self._bad]
        self._note.suspects = suspects
        if self._committer is not None:
            self._committer.leave_out(bad)

    def follow(self, lighthouse: str) -> None:
        """Go over to another Lighthouse: the one before is dead."""
        self._lighthouse = lighthouse
        if self._quorum is not None:
            self._quorum.follow(lighthouse)

    # --- the rest ----------------------------------------------------------------------------

    def _train(self, start: Start) -> None:
        from elasticdl.engines.elastic.quorum import Quorum  # noqa: PLC0415 - torch after threads

        material, committer = self._material, self._committer
        assert committer is not None  # noqa: S101 - prepared
        assignment, options = self._assignment, self._assignment.job.training
        step = start.checkpoint.step if start.checkpoint is not None else 0
        history = History(Point(0, first_lineage(start.generation, start.round, step)))
        snapshots = Snapshots(history)
        self._trainer.slot = start.slot

        self.leave_out(start.bad, start.suspects)

        def open_feed(ledger: Ledger, slots: Collection[int]) -> Iterator[FedBatch]:
            return training_batches(
                functools.partial(self._noted_batches, ledger.left_out),
                ledger,
                slot=start.slot,
                slots=slots,
                num_epochs=options.num_epochs,
            )

        loop = Loop(
            options=options,
            trainer=self._trainer,
            committer=committer,
            open_feed=open_feed,
            slot=start.slot,
            num_records=material.num_records,
            events=history,
            checkpoints=snapshots,
            checkpoint_metadata=assignment.metadata,
            reporter=Silent(),
            validation=self._noted_validation(),
            place=material.first_place(),
            safe_point=self._tell_lost,
            checkpoint_is_due=lambda: snapshots.requested,
            # A peer must be able to go on telling at any commit.
            event_interval_s=0.0,
            accumulator=self._accumulator,
            # Without a fixed logical batch it depends on the workers.
            num_steps=material.num_steps if self._accumulator is not None else None,
            file_variables=material.file_variables,
        )
        if start.checkpoint is not None:
            loop.resume(start.checkpoint)
        loop.place = replace(loop.place, ledger=loop.place.ledger.leave_out(start.left_out))

        def save() -> bytes:
            checkpoint = loop.checkpoint()
            return transport.encode(
                replace(checkpoint, metadata={**checkpoint.metadata, "history": history.to_json()})
            )

        def take_over(data: bytes) -> None:
            checkpoint = transport.decode(data, "the state of a peer")
            loop.join(checkpoint)
            history.take_over(checkpoint.metadata["history"])
            # What this worker had agreed upon with others may not be in that state.
            committer.leave_out(self._bad)

        lighthouse = self._lighthouse or start.lighthouse
        quorum = Quorum(
            lighthouse=lighthouse,
            host=_host_towards(lighthouse),
            name=f"slot{start.slot}-{start.incarnation}",
            save=lambda: committer.state_for_a_peer(save),
            load=committer.receive,
            pace=assignment.pace,
            key=assignment.key,
        )
        self._quorum = quorum
        if self._lighthouse not in (None, lighthouse):
            # It has heard of another one meanwhile.
            quorum.follow(self._lighthouse)
        committer.enter(quorum, history, start.slot, start.incarnation, take_over)
        self._history, self._snapshots, self._loop = history, snapshots, loop
        try:
            loop.run()
        except SupersededError:
            quorum.close()
            raise
        checkpoint = loop.checkpoint()
        loop.finish()
        published = {
            path: array
            for path, array in self._trainer.state().items()
            if array.tobytes() != checkpoint.state[path].tobytes()
        }
        self._final = Snapshot(history.point, checkpoint, loop.is_best, published)
        history.finish()

    def _noted_batches(
        self, left_out: Collection[BatchId], epoch: int, piece: Piece
    ) -> Iterator[FedBatch]:
        """Yield the batches of a piece, with a note of the one that is being made."""
        batches = self._material.shard_batches(
            epoch,
            piece,
            tuple(left_out),
            singly=lambda: (epoch, piece.shard) in self._note.suspects,
        )
        number = piece.committed
        while True:
            batch = BatchId(epoch, piece.shard, number)
            if self._holds_back(batch, left_out):
                yield FedBatch(*batch, None, finished=False)
                return
            with self._note.working("making", *batch):
                fed = next(batches, None)
            if fed is None:
                return
            number = fed.number + 1
            yield fed

    def _holds_back(self, batch: BatchId, left_out: Collection[BatchId]) -> bool:
        """Whether a batch is not to be made yet; who gets to it asks for another feed."""
        if batch in self._bad and batch not in left_out:
            # Until all have agreed to leave it out.
            return True
        if (batch.epoch, batch.shard) not in self._note.suspects or self._loop is None:
            return False
        # The same record kills in this epoch as well, and then it is left out of the next one too.
        return batch.epoch > self._loop.place.ledger.epoch

    def _noted_validation(self) -> Validation | None:
        """Return the validation data, with a note of the shard that is being evaluated."""
        validation, note = self._material.validation, self._note
        if validation is None:
            return None

        def batches(shard: int) -> Iterator[Batch]:
            with note.working("evaluating", 0, shard):
                yield from validation.batches(shard)

        return replace(validation, batches=batches)

    def _tell_lost(self) -> None:
        while self._slots_lost:
            assert self._committer is not None  # noqa: S101 - it trains
            self._committer.tell_lost(self._slots_lost.pop())

    def _prepare(self) -> None:
        # Here nobody waits for it.
        import elasticdl.engines.elastic.quorum  # noqa: F401, PLC0415 - torch after threads

        assignment = self._assignment
        code = None
        if assignment.code is not None:
            code = Path(tempfile.mkdtemp(), "zoo")
            for name, content in assignment.code.items():
                file = code / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
        self._code = code
        self._material: Material = open_material(
            assignment.job,
            code=code,
            plan=assignment.plan,
            world_size=assignment.num_slots,
            indexes=receive(assignment.indexes),
        )[0]
        self._trainer = self._material.create_trainer()
        self._trainer.require_sums("several workers")
        if assignment.num_slots > 1:
            self._trainer.hooks.check_sharing()
        if self._material.definition.required_exports:
            self._material.why_not_exported(self._trainer)
        self._accumulator = self._material.create_accumulator(self._trainer)
        # As many as will come: kernels are chosen, and their memory taken, for a size.
        example = repeated(self._material.example(), self._material.minibatch_size)
        self._committer = ElasticCommitter(
            self._trainer,
            example,
            evaluates=self._material.validation is not None,
            num_slots=assignment.num_slots,
            accumulator=self._accumulator,
            note=self._note,
        )

    def _failure(self, error: ElasticDLError) -> Failure:
        return Failure(type(error).__name__, self._with_users_paths(str(error)))

    def _with_users_paths(self, message: str) -> str:
        """Name files of the zoo where the user has them, not our copies."""
        zoo = self._assignment.job.model.zoo if self._assignment.job.model else None
        if zoo is not None and self._code is not None:
            for path in (str(self._code), tracebacks.shown_path(self._code)):
                message = message.replace(path, zoo.rstrip("/"))
        return message


def _host_towards(address: str) -> str:
    """Return the address of this machine as seen from another."""
    host, port = address.removeprefix("http://").rsplit(":", 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # No packet is sent: the system only says which of its addresses it would use.
        probe.connect((host, int(port)))
        name: str = probe.getsockname()[0]
    return name
