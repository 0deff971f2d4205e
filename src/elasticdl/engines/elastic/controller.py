"""Driver of an elastic run: keeps the workers running and writes their events and checkpoints.

    workers  --- events, checkpoints --->  driver  --->  events.jsonl, checkpoints/
       ^                                     |
       +---- rank, checkpoint, deaths -------+

The driver takes no part in a step. It runs the Lighthouse (torchft's server, which decides which
workers take part in the next step), starts and replaces workers (`scaling_policy.py` decides when),
and fetches events and checkpoints from one of them. Since only the driver writes, its lock on the
output covers the whole run.

If no living worker continues the history that was written, the workers start a new round from the
newest checkpoint, like a resumed job.

Shards are not assigned here: the loop of every worker (`engines/loop.py`) does that after each
commit with `sharding/ledger.py`, and all of them get the same result.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import ray.exceptions

from elasticdl.engines import run as training_run
from elasticdl.engines.elastic import worker_warnings
from elasticdl.engines.elastic.bad_records import BadRecords
from elasticdl.engines.elastic.encryption import KEY_BYTES
from elasticdl.engines.elastic.event_buffer import WAITING, StateSnapshot, WorkerReport
from elasticdl.engines.elastic.event_writer import EventWriter
from elasticdl.engines.elastic.index_transfer import send
from elasticdl.engines.elastic.job_registry import Preemption
from elasticdl.engines.elastic.lighthouse import WatchedLighthouse
from elasticdl.engines.elastic.peer_watch import limit_of
from elasticdl.engines.elastic.placement import (
    WorkerActor,
    call,
    connected,
    leaving_machines,
)
from elasticdl.engines.elastic.ray_cluster import RayLostError
from elasticdl.engines.elastic.repeated_failures import (
    MAX_MEMORY_LOSSES_A_WORKER,
    FailureCounter,
    MemoryFailures,
)
from elasticdl.engines.elastic.scaling_policy import (
    Action,
    AssignRank,
    ClusterState,
    FailJob,
    KillWorker,
    StartWorkers,
    WorkerState,
    WorkerStatus,
    decide,
)
from elasticdl.engines.elastic.timeouts import Timeouts
from elasticdl.engines.elastic.worker import (
    Assignment,
    Identity,
    InitialState,
    WorkerExit,
    WorkerFailure,
)
from elasticdl.engines.elastic.worker_process import Died
from elasticdl.engines.elastic.worker_warnings import WarningLog
from elasticdl.engines.interrupts import Interrupts
from elasticdl.engines.job_messages import without_recording
from elasticdl.engines.loop import split_arrays
from elasticdl.engines.run import Run, TrainResult
from elasticdl.errors import TrainingError, UnavailableError
from elasticdl.events import WorkerJoined, WorkerLeft

if TYPE_CHECKING:
    from elasticdl.engines.elastic.crash_note import BatchInWork
    from elasticdl.engines.engine import Outcome, Reporter
    from elasticdl.job import Job, Workers

_REPORT_INTERVAL_S = 1.0
# The end of a worker's call is noticed at once; everything else is polled at this interval.
_POLL_S = 0.3
_CLUSTER_INTERVAL_S = 1.0
_CHECKPOINT_INTERVAL_S = 30.0
_CHECKPOINT_INTERVAL_BEFORE_A_LOSS_S = 3.0
# Ray needs a moment to place a process even if there is room.
_PLACING_S = 2.0
# If more Ray instances than this die in a row without a new checkpoint, the machine itself is the
# likely cause.
_MAX_RAYS_LOST = 3
# A worker that is silent for this long while others commit steps is not part of those steps.
_LEFT_OUT_S = 10.0
_PATIENCE_AT_THE_END_S = 60.0
_LAST_CHECKPOINT_S = 15.0
# A worker answers within a poll, and on a busy machine within seconds.
_SILENCE_AT_THE_END_S = 5.0


class _GaveUpError(UnavailableError):
    """Raised when there have been too few workers for longer than `--give_up_after`."""


def train(job: Job, reporter: Reporter) -> Outcome:
    """Train on workers that may die or join during the run; resume an earlier run of the job.

    Raises:
        ElasticDLError: The job failed; the reason is in the event log as well. See
            `elasticdl.errors`.
    """
    with WarningLog().attached():
        return training_run.train(job, reporter, _train)


def _train(run: Run) -> TrainResult:
    workers = run.context.job.workers
    assert workers is not None  # noqa: S101 - an elastic job
    controller = _Controller(run, workers, _timeouts_of(workers))
    which = "a worker" if workers.max == 1 else f"{workers.max} workers"
    without_recording(run.reporter).note(f"Starting {which}, which takes some seconds.")
    num_lost, furthest_step = 0, -1
    with Interrupts() as interrupts:
        while True:
            try:
                return controller.train(interrupts)
            except _GaveUpError:
                # Restarting Ray would not provide the missing workers.
                raise
            except UnavailableError as lost:
                step = max(run.store.steps(), default=0)
                num_lost = 1 if step > furthest_step else num_lost + 1
                furthest_step = max(step, furthest_step)
                if workers.ray_address is not None or num_lost > _MAX_RAYS_LOST:
                    raise
                run.reporter.note(f"{lost} Starting Ray again.")


def _timeouts_of(workers: Workers) -> Timeouts:
    return Timeouts(
        heartbeat_s=min(0.1, workers.heartbeat_timeout_s / 8),
        heartbeat_timeout_s=workers.heartbeat_timeout_s,
        join_timeout_s=workers.join_timeout_s,
        batch_timeout_s=workers.batch_timeout_s,
        sum_timeout_s=workers.sum_timeout_s,
        transfer_timeout_s=workers.transfer_timeout_s,
        # Two workers that join together must not stop waiting for those that do not request a new
        # quorum yet.
        quorum_interval_s=min(Timeouts.quorum_interval_s, workers.join_timeout_s / 8),
    )


@dataclass(eq=False)
class _Process:
    """The controller's record of a worker process.

    Times are in seconds of `time.monotonic()`.

    Attributes:
        incarnation: Number of the process in this job, from 1.
        actor: Handle of its Ray actor.
        state: What the process is doing.
        rank: Its rank; None until it is assigned one.
        identity: The machine and process that it reported when it was ready; None before.
        work: Pending call of `Worker.prepare` or `Worker.run`; None if there is none.
        request: Pending call of `Worker.report`; None if there is none.
        requested_events: Whether the last request also fetches events.
        requested_s: When a report was last requested.
        is_placed: Whether Ray has found room for it on a machine.
        started_s: When it was started.
        answered_s: When it last answered a call; its silence is measured from then.
        report: Its last report; None before the first.
        report_of_s: When `report` was requested.
    """

    incarnation: int
    actor: Any
    state: WorkerState = WorkerState.STARTING
    rank: int | None = None
    identity: Identity | None = None
    # The call that prepares or trains, and the report request that is not answered yet.
    work: Any = None
    request: Any = None
    requested_events: bool = False
    requested_s: float = 0.0
    # Whether Ray has placed it: a process stays pending while there is no room for it.
    is_placed: bool = False
    started_s: float = field(default_factory=time.monotonic)
    answered_s: float = field(default_factory=time.monotonic)
    report: WorkerReport | None = None
    # When the report was requested.
    report_of_s: float = 0.0

    def silent_s(self, now: float) -> float:
        """Return the seconds since the worker last answered; 0 if no report request is pending."""
        return now - self.answered_s if self.request is not None else 0.0

    def keeps_up(self, now: float) -> bool:
        """Return whether the worker has joined the others and has answered recently.

        It has joined if its history contains the last commit in the event log.
        """
        continues = self.report is not None and self.report.continues
        return continues and self.silent_s(now) < _LEFT_OUT_S


class _Controller:
    """Starts, watches and replaces the workers of one run; see the module docstring."""

    def __init__(self, run: Run, workers: Workers, timeouts: Timeouts) -> None:
        self._run, self._workers, self._timeouts = run, workers, timeouts
        self._processes: list[_Process] = []
        # Dead processes whose actors are ready to start another one.
        self._vacant: list[_Process] = []
        self._other_jobs: Preemption | None = None
        self._leaving_machines: Collection[str] = ()
        self._checked_cluster_s = 0.0
        self._num_started = 0
        self._fruitless = 0
        self._memory_losses = MemoryFailures(
            # The workers of one machine share its memory, so a replacement does not help. In a
            # cluster a single machine may have less memory, or other programs that use it.
            1 if workers.ray_address is None else MAX_MEMORY_LOSSES_A_WORKER * workers.max
        )
        # The longest time that a batch took on any worker.
        self._slowest_s = 0.0
        self._deaths = FailureCounter()
        self._bad = BadRecords(run, skip=workers.skip_bad_records)
        self._checkpoint = run.checkpoint
        self._round = 0
        self._journal = EventWriter(run)
        self._report_interval_s = _REPORT_INTERVAL_S
        self._first_step = self._journal.step
        self._begun = self._has_trained = False
        # When the first worker of this round finished.
        self._finished_s: float | None = None
        self._last_trained_s = time.monotonic()
        self._last_checkpoint_s = time.monotonic()
        self._snapshot_of: tuple[_Process, Any] | None = None
        self._last_holder: dict[int, int] = {}

    def train(self, interrupts: Interrupts) -> TrainResult:
        """Start Ray on this machine or join a cluster, and train from the run's current progress.

        Raises:
            UnavailableError: Ray was lost.
        """
        with connected(self._workers) as ray_here:
            self._ray = ray_here
            try:
                self._enter()
                return self._run_to_the_end(interrupts)
            except ray.exceptions.OutOfMemoryError as error:
                count = self._memory_losses.count
                others = f" ({count} times since the newest checkpoint)" if count > 1 else ""
                raise TrainingError(
                    f"A worker ran out of memory{others}: {str(error).splitlines()[0]} Use a "
                    "smaller --minibatch_size, fewer workers on a machine, or machines with more "
                    "memory."
                ) from error
            except (ray.exceptions.RayError, RayLostError) as error:
                why = self._ray.why_lost()
                if why is None:
                    raise
                raise UnavailableError(
                    f"{why} The newest checkpoint was written at step {self._newest_step():,}; run "
                    "the same command to resume from it."
                ) from error
            finally:
                self._close()

    def _enter(self) -> None:
        """Start the Lighthouse and prepare the workers' settings, once Ray is connected.

        If Ray was lost before, also start a new round.
        """
        run, workers = self._run, self._workers
        self._run_id = uuid.uuid4().hex[:12]
        self._report_interval_s = _REPORT_INTERVAL_S
        self._lighthouse = WatchedLighthouse(self._ray.host, workers.min, self._timeouts)
        if workers.ray_address is not None:
            name = f"{run.folder.uri}#{run.generation}"
            self._other_jobs = Preemption(name, workers.priority)
        num_cpus = os.cpu_count() or 1
        assignment = Assignment(
            job=run.context.complete_job,
            plan=run.context.plan,
            metadata=run.metadata,
            code=_code_of(run),
            num_ranks=workers.max,
            num_threads=max(1, num_cpus // workers.max) if workers.ray_address is None else 1,
            framework=run.context.definition.framework,
            timeouts=self._timeouts,
            key=secrets.token_bytes(KEY_BYTES),
            indexes=send(run.context.indexes(), same_machine=workers.ray_address is None),
            is_resumed=run.checkpoint is not None,
        )
        # On this machine it is sent with each call: if it were in the raylet's memory, the raylet's
        # death would end this process.
        self._assignment = assignment if workers.ray_address is None else ray.put(assignment)
        if self._begun:
            self._new_round("Ray was lost")
            self._begun, self._last_trained_s = False, time.monotonic()

    # --- the loop -------------------------------------------------------------------------

    def _run_to_the_end(self, interrupts: Interrupts) -> TrainResult:
        if not self._num_started:
            self._bad.begin(self._checkpoint)
            self._run.started(self._journal.step, is_resumed=False)
        while True:
            self._listen()
            self._check_cluster()
            for action in decide(self._cluster_state()):
                self._act(action)
            finished = [p for p in self._processes if p.state is WorkerState.FINISHED]
            if finished and not self._writes_files(finished):
                trained = self._finish(finished)
                if trained is not None:
                    return trained
            try:
                interrupts.check()
            except BaseException:
                self._save_progress()
                raise

    def _writes_files(self, finished: Sequence[_Process]) -> bool:
        """Return whether the callbacks of the lowest rank's worker may still be writing files.

        While this is True, the job must not end. It is False for a worker that is silent for too
        long, and for one that waits for a quorum: it has missed the end of training, so it writes
        nothing.

        Args:
            finished: The workers that have finished; at least one.
        """
        now = time.monotonic()
        if self._finished_s is None:
            self._finished_s, self._report_interval_s = now, _POLL_S
        lowest = min(self._training(), key=lambda p: p.rank or 0, default=None)
        if lowest is None or any((p.rank or 0) < (lowest.rank or 0) for p in finished):
            return False
        if lowest.silent_s(now) > _SILENCE_AT_THE_END_S:
            return False
        if now - self._finished_s >= limit_of(self._timeouts.batch_timeout_s, self._slowest_s):
            return False
        if lowest.report_of_s < self._finished_s:
            # Its last report predates the end and proves nothing; a short run may end before the
            # first report.
            return True
        return lowest.report is not None and lowest.report.doing != WAITING

    def _act(self, action: Action) -> None:
        match action:
            case StartWorkers(count):
                for _ in range(count):
                    self._start()
            case AssignRank(incarnation, rank):
                self._assign(self._process(incarnation), rank)
            case KillWorker(incarnation, reason):
                self._end(self._process(incarnation), reason)
            case FailJob(reason, may_pass):
                raise (_GaveUpError if may_pass else TrainingError)(
                    f"{reason} The newest checkpoint was written at step {self._newest_step():,}; "
                    "run the same command to resume from it."
                )

    def _newest_step(self) -> int:
        return max(self._run.store.steps(), default=0)

    def _close(self) -> None:
        for process in [*self._processes, *self._vacant]:
            _kill(process)
        self._processes, self._vacant = [], []

    def _cluster_state(self) -> ClusterState:
        now = time.monotonic()
        if any(p.state is WorkerState.TRAINING for p in self._processes):
            self._last_trained_s = now
        return ClusterState(
            min_workers=self._workers.min,
            max_workers=self._workers.max,
            num_spares=self._workers.spare,
            members=[self._status_of(process, now) for process in self._processes],
            begun=self._begun,
            idle_s=now - self._last_trained_s,
            fruitless_starts=self._fruitless,
            give_up_after_s=self._workers.give_up_after_s,
            hang_timeout_s=limit_of(self._timeouts.batch_timeout_s, self._slowest_s),
            make_room=self._other_jobs is not None and self._other_jobs.wait,
        )

    def _check_cluster(self) -> None:
        """Check Ray, the Lighthouse, the machines of a cluster, and the needs of other jobs on it.

        Workers are told the address of a new Lighthouse. Idle processes are ended if another job
        needs their room, or if their machine is about to be reclaimed.

        Raises:
            RayLostError: Ray is gone; the newest state that could be fetched is saved.
            OutputError: The disk of temporary files is full.
        """
        now = time.monotonic()
        if now - self._checked_cluster_s < _CLUSTER_INTERVAL_S:
            return
        self._checked_cluster_s = now
        if self._ray.why_lost() is not None:
            # The surviving actors may still provide the newest state.
            self._save_progress()
            raise RayLostError
        self._ray.check_room()
        if self._lighthouse.replaced():
            address = self._lighthouse.address
            self._run.reporter.note(f"The Lighthouse died; a new one runs at {address}.")
            for process in self._processes:
                call(process.actor, "follow", address)
        if self._other_jobs is None or not self._ray.answers():
            return
        self._leaving_machines = leaving_machines()
        members = [self._status_of(process, now) for process in self._processes]
        num_missing = 0
        if any(member.waits_for_room for member in members):
            num_placed = sum(process.is_placed for process in self._processes)
            num_missing = max(0, self._workers.max - num_placed)
        self._other_jobs.report_missing(num_missing)
        for process in self._vacant.copy():
            if self._other_jobs.wait or self._will_be_lost(process):
                self._vacant.remove(process)
                _kill(process)

    def _status_of(self, process: _Process, now: float) -> WorkerStatus:
        report = process.report
        stuck = report is not None and report.doing.startswith("computing")
        return WorkerStatus(
            process.incarnation,
            process.state,
            process.rank,
            silent_s=process.silent_s(now) if process.is_placed else 0.0,
            stuck_s=report.doing_s if report is not None and stuck else 0.0,
            machine_leaves=self._will_be_lost(process),
            waits_for_room=not process.is_placed and now - process.started_s > _PLACING_S,
            joins=process.state is WorkerState.TRAINING and not process.keeps_up(now),
        )

    def _will_be_lost(self, process: _Process) -> bool:
        return process.identity is not None and process.identity.node in self._leaving_machines

    def _process(self, incarnation: int) -> _Process:
        return next(p for p in self._processes if p.incarnation == incarnation)

    # --- starting and ending workers --------------------------------------------------------------

    def _start(self) -> None:
        self._num_started += 1
        if self._vacant:
            # This is a second faster than a new actor, most of it CPU time.
            actor = self._vacant.pop().actor
        else:
            actor = WorkerActor.options(num_gpus=self._workers.gpus).remote(
                self._run_id, self._assignment
            )
        process = _Process(self._num_started, actor)
        # Low priority does not delay the run: either there are spare cores, or all cores are in use
        # and one worker less makes no difference.
        is_spare = len(self._training()) >= self._workers.max
        process.work = actor.prepare.remote(in_background=is_spare)
        self._processes.append(process)

    def _assign(self, process: _Process, rank: int) -> None:
        process.state, process.rank = WorkerState.TRAINING, rank
        process.answered_s = time.monotonic()
        start = InitialState(
            rank,
            process.incarnation,
            self._run.generation,
            self._round,
            self._lighthouse.address,
            self._checkpoint,
            left_out=self._bad.at_start,
            bad=[batch for batch in self._bad.batches if batch not in self._journal.left_out],
            suspects=self._deaths.suspects,
        )
        process.work = process.actor.call.remote("run", start)
        self._begun, self._fruitless = True, 0
        assert process.identity is not None  # noqa: S101 - it is ready
        self._run.events.write(
            WorkerJoined(
                step=self._journal.step,
                rank=rank,
                incarnation=process.incarnation,
                host=process.identity.host,
                pid=process.identity.pid,
                replaces=self._last_holder.get(rank, 0),
                started=time.time() - (time.monotonic() - process.started_s),
            )
        )
        if rank in self._last_holder:
            self._run.reporter.note(
                f"Worker {rank} is replaced by process {process.identity.pid} on "
                f"{process.identity.host}."
            )
        self._last_holder[rank] = process.incarnation

    def _end(self, process: _Process, reason: str) -> None:
        """Kill a worker's process; if it had a rank, log the reason and tell the other workers."""
        _kill(process)
        self._forget(process, reason)

    def _forget(self, process: _Process, reason: str) -> None:
        self._processes.remove(process)
        if self._snapshot_of is not None and self._snapshot_of[0] is process:
            self._snapshot_of = None
        if process.rank is None or process.state is WorkerState.FINISHED:
            return
        for other in self._training():
            call(other.actor, "lost", process.rank)
        self._run.events.write(
            WorkerLeft(
                step=self._journal.step,
                rank=process.rank,
                incarnation=process.incarnation,
                reason=reason,
            )
        )
        without_recording(self._run.reporter).note(
            f"Worker {process.rank} {reason}; workers still training: {len(self._training())}."
        )
        if not self._training():
            self._new_round("All workers are lost")

    def _training(self) -> list[_Process]:
        return [p for p in self._processes if p.state is WorkerState.TRAINING]

    def _new_round(self, why: str) -> None:
        """Kill all workers that have a rank, so that the next ones resume from a checkpoint.

        Training continues from the newest checkpoint, in a new round.

        Args:
            why: The reason, for the user.

        Raises:
            TrainingError: All workers were lost too many times without progress.
        """
        self._finished_s, self._report_interval_s = None, _REPORT_INTERVAL_S
        self._deaths.count_total_loss(self._journal.step)
        for process in [p for p in self._processes if p.rank is not None]:
            self._processes.remove(process)
            _kill(process)
        restored = self._run.store.latest()
        self._checkpoint = restored.checkpoint if restored is not None else None
        self._round += 1
        self._snapshot_of = None
        self._journal.restart(self._checkpoint)
        self._run.reporter.note(f"{why}: resuming from step {self._journal.step:,}.")
        self._bad.begin(self._checkpoint)
        self._run.write_start(self._journal.step, self._bad.at_start)

    # --- messages from workers --------------------------------------------------------------------

    def _listen(self) -> None:
        """Wait up to a polling interval for results of calls to workers, and process them."""
        self._request_reports()
        waiting: dict[Any, tuple[_Process, str]] = {}
        for process in self._processes:
            if process.work is not None:
                waiting[process.work] = (process, "work")
            if process.request is not None:
                waiting[process.request] = (process, "request")
        if self._snapshot_of is not None:
            waiting[self._snapshot_of[1]] = (self._snapshot_of[0], "snapshot")
        if not waiting:
            time.sleep(_POLL_S)
            return
        next_s = min(process.requested_s for process in self._processes) + self._report_interval_s
        pause_s = max(0.01, next_s - time.monotonic())
        done, _ = ray.wait(list(waiting), timeout=min(pause_s, _POLL_S))
        if done:
            # Take everything that has arrived by now.
            done, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        now = time.monotonic()
        for answer in done:
            # Set for all answers before any is processed, so that a delay in this process does not
            # count as a worker's silence.
            waiting[answer][0].answered_s = now
        for answer in done:
            process, kind = waiting[answer]
            if process in self._processes:
                self._handle(process, kind, answer)
        taken = sum(process.rank is not None for process in self._processes)
        self._journal.details = {"workers": f"{taken}/{self._workers.max}"}
        self._journal.write_steps()

    def _request_reports(self) -> None:
        """Request a report from each worker that is due; one of them also sends its events."""
        now = time.monotonic()
        publisher = self._publisher()
        for process in self._processes:
            if process.request is None and now - process.requested_s >= self._report_interval_s:
                process.requested_s = now
                process.answered_s = max(process.answered_s, now - self._report_interval_s)
                process.requested_events = process is publisher
                process.request = call(
                    process.actor,
                    "report",
                    self._journal.known,
                    with_events=process.requested_events,
                )

    def _handle(self, process: _Process, kind: str, answer: Any) -> None:
        try:
            value = ray.get(answer)
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError as error:
            why = f"died ({type(error).__name__})"
            if isinstance(error, ray.exceptions.OutOfMemoryError):
                why = "ran out of memory"
                if self._memory_losses.count_and_check(self._newest_step()):
                    raise
            self._fruitless += process.state is WorkerState.STARTING
            self._end(process, why)
            return
        process.is_placed = True
        match value:
            case WorkerFailure():
                if value.is_trained:
                    self._save_final(process)
                raise value.to_error()
            case WorkerExit():
                self._end(process, f"left ({value.reason})")
            case Died(working_on, how):
                self._fruitless += process.state is WorkerState.STARTING
                if process.state is WorkerState.TRAINING:
                    self._count_death(process, working_on)
                self._forget(process, f"died ({how})" if how else "died")
                self._vacant.append(process)
            case _:
                self._handle_value(process, kind, value)

    def _count_death(self, dead: _Process, working_on: Sequence[BatchInWork]) -> None:
        suspects = self._deaths.suspects
        found = self._deaths.count_death(working_on, self._journal.step)
        bad = [] if found is None else [self._bad.add(found)]
        if not bad and self._deaths.suspects == suspects:
            return
        for process in self._training():
            if process is not dead:
                call(process.actor, "leave_out", bad, self._deaths.suspects)

    def _handle_value(self, process: _Process, kind: str, value: Any) -> None:
        match kind:
            case "request":
                process.request, process.report = None, value
                process.report_of_s = process.requested_s
                if value is not None:
                    self._slowest_s = max(self._slowest_s, value.slowest_s)
                    worker_warnings.repeat(value.warnings)
                if value is not None and process.state is WorkerState.TRAINING:
                    self._take_report(process, value)
            case "snapshot":
                self._snapshot_of = None
                if value is not None and not self._journal.save(value):
                    call(process.actor, "request_snapshot")
            case "work" if process.state is WorkerState.STARTING:
                process.work, process.state, process.identity = None, WorkerState.READY, value
            case _:
                process.work, process.state = None, WorkerState.FINISHED

    def _publisher(self) -> _Process | None:
        """Return the worker to fetch events from; None if there is none.

        It is the lowest rank in training that has no pending report request.
        """
        training = [p for p in self._training() if p.request is None]
        return min(training, key=lambda p: p.rank or 0, default=None)

    def _take_report(self, process: _Process, report: WorkerReport) -> None:
        if not report.continues:
            # It has just joined, or its history is not the one that was written.
            now = time.monotonic()
            if report.point.num_commits > 0 and not any(
                other.keeps_up(now) for other in self._training()
            ):
                self._new_round(
                    "The workers with the last logged steps were lost before the others joined"
                )
            return
        if not process.requested_events:
            return
        self._take_events(report)
        if report.has_snapshot and self._snapshot_of is None:
            # All events before it are written by now.
            answer = call(process.actor, "take_snapshot", report.confirmed)
            self._snapshot_of = (process, answer)
        elif self._checkpoint_is_due():
            self._last_checkpoint_s = time.monotonic()
            call(process.actor, "request_snapshot")

    def _take_events(self, report: WorkerReport) -> None:
        if not self._has_trained:
            # Only now, because the workers may refuse the checkpoint.
            self._has_trained = True
            self._run.resumed(self._first_step)
        self._journal.take(report)

    def _checkpoint_is_due(self) -> bool:
        if self._run.context.job.training.checkpoint_steps:
            return False
        interval_s = _CHECKPOINT_INTERVAL_S
        if any(self._will_be_lost(process) for process in self._training()):
            # If all workers are lost, resuming from this checkpoint repeats less work.
            interval_s = _CHECKPOINT_INTERVAL_BEFORE_A_LOSS_S
        return time.monotonic() - self._last_checkpoint_s > interval_s

    # --- the end ------------------------------------------------------------------------------

    def _finish(self, finished: list[_Process]) -> TrainResult | None:
        """Fetch and save the final state and the last events, both from the same finished worker.

        Returns:
            The result; None if no finished worker could send its state. A new round was then
            started.
        """
        for process in finished:
            final = self._save_final(process)
            if final is None:
                continue
            trainer = self._run.context.create_trainer()
            state = split_arrays(final.checkpoint.state)[1]
            # The callbacks' state belongs to the worker that called them, so it is not loaded.
            trainer.load_state({**state, **final.published})
            metrics = dict(final.checkpoint.metadata["metrics"])
            if final.restored:
                self._run.reporter.note(final.restored)
            return TrainResult(trainer, metrics, final.restored)
        self._new_round("All workers that finished are lost")
        return None

    def _save_final(self, trained: _Process) -> StateSnapshot | None:
        """Fetch and save the final state of a worker, and the last events from the same worker.

        Returns:
            The state; None if the worker is lost, or if its commits are not those in the event log.
        """
        try:
            report = ray.get(
                call(trained.actor, "report", self._journal.known, with_events=True),
                timeout=_PATIENCE_AT_THE_END_S,
            )
            final = ray.get(call(trained.actor, "final"), timeout=_PATIENCE_AT_THE_END_S)
        except ray.exceptions.RayError:
            self._end(trained, "died")
            return None
        if not (isinstance(report, WorkerReport) and isinstance(final, StateSnapshot)):
            self._end(trained, "died")
            return None
        if not report.continues:
            return None
        worker_warnings.repeat(report.warnings)
        self._take_events(report)
        self._journal.save(final)
        if final.stopped:
            # The workers' own notes are not shown.
            self._run.reporter.note(final.stopped)
        return final

    def _save_progress(self) -> None:
        """Fetch a last checkpoint from a worker and save it, before an interrupted run ends."""
        publisher = min(self._training(), key=lambda p: p.rank or 0, default=None)
        if publisher is None:
            return
        # Poll faster: the user is waiting.
        self._report_interval_s = _POLL_S
        # A checkpoint that was already on its way may be older.
        step = self._journal.step
        self._journal.hold()
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(call(publisher.actor, "request_snapshot"), timeout=5)
            deadline = time.monotonic() + _LAST_CHECKPOINT_S
            while time.monotonic() < deadline and self._newest_step() < step:
                # After the death of a raylet its actors are silent, and Ray reports it only late.
                if all(
                    p.silent_s(time.monotonic()) > _SILENCE_AT_THE_END_S for p in self._training()
                ):
                    break
                self._listen()
        self._journal.release(drop=self._newest_step() >= step)


def _kill(process: _Process) -> None:
    # It may be dead, or on a machine that is out of reach.
    with contextlib.suppress(Exception):
        ray.kill(process.actor)


def _code_of(run: Run) -> Mapping[str, bytes] | None:
    job = run.context.job
    if job.model is None or job.model.zoo is None:
        return None
    return {
        str(path.relative_to(run.code)): path.read_bytes()
        for path in sorted(Path(run.code).rglob("*"))
        if path.is_file()
    }
