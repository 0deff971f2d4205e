"""The driver of an elastic run: it keeps the workers up and writes down what they tell.

    workers  --- events, checkpoints --->  driver  --->  events.jsonl, checkpoints/
       ^                                     |
       +---- slot, checkpoint, the dead -----+

The driver takes no part in a step: it holds the Lighthouse, starts and replaces workers
(`decisions.py` says when), and fetches events and checkpoints from one of them. Since only the
driver writes, the lock it has on the output holds for all.

If nobody alive carries on the history that was told, the workers start a new round from the
newest checkpoint, like a resumed job.
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
from elasticdl.engines.elastic.board import Neighbours
from elasticdl.engines.elastic.deaths import (
    MAX_MEMORY_LOSSES_A_WORKER,
    Deaths,
    MemoryLosses,
)
from elasticdl.engines.elastic.decisions import (
    Action,
    Assign,
    Fleet,
    GiveUp,
    Kill,
    Member,
    State,
    decide,
)
from elasticdl.engines.elastic.decisions import Start as StartProcesses
from elasticdl.engines.elastic.journal import Journal
from elasticdl.engines.elastic.lighthouse import WatchedLighthouse
from elasticdl.engines.elastic.pace import Pace
from elasticdl.engines.elastic.peer_watch import limit_of
from elasticdl.engines.elastic.placement import (
    WorkerActor,
    ask,
    connected,
    machines_that_go,
)
from elasticdl.engines.elastic.ray_cluster import RayLostError
from elasticdl.engines.elastic.reports import WAITING, Snapshot
from elasticdl.engines.elastic.sealing import KEY_BYTES
from elasticdl.engines.elastic.sent_index import send
from elasticdl.engines.elastic.worker import Assignment, Failure, Identity, Left, Start
from elasticdl.engines.elastic.worker_process import Died
from elasticdl.engines.elastic.worker_warnings import WarningLog
from elasticdl.engines.interrupts import Interrupts
from elasticdl.engines.job_messages import aloud
from elasticdl.engines.loop import split_arrays
from elasticdl.engines.run import Run, Trained
from elasticdl.errors import TrainingError, UnavailableError
from elasticdl.events import WorkerJoined, WorkerLeft

if TYPE_CHECKING:
    from elasticdl.engines.elastic.crash_note import BatchInWork
    from elasticdl.engines.elastic.reports import Report
    from elasticdl.engines.engine import Outcome, Reporter
    from elasticdl.job import Job, Workers

_REPORT_INTERVAL_S = 1.0
# What ends a worker's call is heard at once; what else may change here is looked at so often.
_POLL_S = 0.3
_CLUSTER_INTERVAL_S = 1.0
_CHECKPOINT_INTERVAL_S = 30.0
_CHECKPOINT_INTERVAL_BEFORE_A_LOSS_S = 3.0
# Ray needs a moment to place a process where there is room.
_PLACING_S = 2.0
# So many Rays in a row may die without a further checkpoint; then the machine has a problem.
_MOST_RAYS_LOST = 3
# Who was silent for so long while others committed steps was left out of them.
_LEFT_OUT_S = 10.0
_PATIENCE_AT_THE_END_S = 60.0
# A worker answers within a poll, and on a busy machine within seconds.
_SILENCE_AT_THE_END_S = 5.0


class _GaveUpError(UnavailableError):
    """Nobody could train for as long as the user waits."""


def train(job: Job, reporter: Reporter) -> Outcome:
    """Train on workers that come and go; the same command goes on where an earlier one ended.

    Raises:
        ElasticDLError: See `elasticdl.errors`; the reason is in the events as well.
    """
    with WarningLog().attached():
        return training_run.train(job, reporter, _train)


def _train(run: Run) -> Trained:
    workers = run.material.job.workers
    assert workers is not None  # noqa: S101 - an elastic job
    controller = _Controller(run, workers, _pace_of(workers))
    num_lost, furthest_step = 0, -1
    with Interrupts() as interrupts:
        while True:
            try:
                return controller.train(interrupts)
            except _GaveUpError:
                # Another Ray would not bring what it waited for.
                raise
            except UnavailableError as lost:
                step = max(run.store.steps(), default=0)
                num_lost = 1 if step > furthest_step else num_lost + 1
                furthest_step = max(step, furthest_step)
                if workers.ray_address is not None or num_lost > _MOST_RAYS_LOST:
                    raise
                run.reporter.note(f"{lost} Starting another Ray.")


def _pace_of(workers: Workers) -> Pace:
    return Pace(
        heartbeat_s=min(0.1, workers.heartbeat_timeout_s / 8),
        heartbeat_timeout_s=workers.heartbeat_timeout_s,
        join_timeout_s=workers.join_timeout_s,
        batch_timeout_s=workers.batch_timeout_s,
        sum_timeout_s=workers.sum_timeout_s,
        transfer_timeout_s=workers.transfer_timeout_s,
        # Two who join at a time must not give up waiting for those that do not ask yet.
        quorum_interval_s=min(Pace.quorum_interval_s, workers.join_timeout_s / 8),
    )


@dataclass(eq=False)
class _Process:
    """A worker's process as the driver knows it."""

    incarnation: int
    actor: Any
    state: State = State.STARTING
    slot: int | None = None
    identity: Identity | None = None
    # The call that prepares or trains, and the question that is not answered yet.
    work: Any = None
    question: Any = None
    asked_for_events: bool = False
    asked_s: float = 0.0
    # It has a place: Ray keeps processes waiting for which there is no room.
    is_placed: bool = False
    started_s: float = field(default_factory=time.monotonic)
    heard_s: float = field(default_factory=time.monotonic)
    report: Report | None = None
    # When the question was asked that the report answers.
    report_of_s: float = 0.0

    def silent_s(self, now: float) -> float:
        """Return for how long it has owed an answer."""
        return now - self.heard_s if self.question is not None else 0.0

    def carries_on(self, now: float) -> bool:
        """Return whether it has the history that was told, and takes part in what comes of it."""
        told = self.report is not None and self.report.continues
        return told and self.silent_s(now) < _LEFT_OUT_S


class _Controller:
    """See the module."""

    def __init__(self, run: Run, workers: Workers, pace: Pace) -> None:
        self._run, self._workers, self._pace = run, workers, pace
        self._processes: list[_Process] = []
        # Dead ones whose actors stand ready to start another.
        self._vacant: list[_Process] = []
        self._neighbours: Neighbours | None = None
        self._machines_that_go: Collection[str] = ()
        self._looked_around_s = 0.0
        self._num_started = 0
        self._fruitless = 0
        self._memory_losses = MemoryLosses(
            # The workers of this machine share its memory. In a cluster one machine may have less
            # than the others, or other programs that take it.
            1 if workers.ray_address is None else MAX_MEMORY_LOSSES_A_WORKER * workers.max
        )
        # The longest that a batch took anywhere.
        self._slowest_s = 0.0
        self._deaths = Deaths()
        self._bad = BadRecords(run, skip=workers.skip_bad_records)
        self._checkpoint = run.checkpoint
        self._round = 0
        self._journal = Journal(run)
        self._report_interval_s = _REPORT_INTERVAL_S
        self._begun = False
        # When the first worker was done, in this round.
        self._finished_s: float | None = None
        self._last_trained_s = time.monotonic()
        self._last_checkpoint_s = time.monotonic()
        self._snapshot_of: tuple[_Process, Any] | None = None
        self._last_holder: dict[int, int] = {}

    def train(self, interrupts: Interrupts) -> Trained:
        """Train in a Ray of this run's own or in a cluster, from where the run is.

        Raises:
            UnavailableError: Ray went away.
        """
        with connected(self._workers) as ray_here:
            self._ray = ray_here
            try:
                self._enter()
                return self._run_to_the_end(interrupts)
            except ray.exceptions.OutOfMemoryError as error:
                count = self._memory_losses.count
                others = f" ({count} have since the newest checkpoint)" if count > 1 else ""
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
                    f"{why} The newest checkpoint is of step {self._newest_step():,}; the same "
                    "command goes on from it."
                ) from error
            finally:
                self._close()

    def _enter(self) -> None:
        """Make what needs Ray; after another Ray was lost, from the newest checkpoint."""
        run, workers = self._run, self._workers
        self._run_id = uuid.uuid4().hex[:12]
        self._report_interval_s = _REPORT_INTERVAL_S
        self._lighthouse = WatchedLighthouse(self._ray.host, workers.min, self._pace)
        if workers.ray_address is not None:
            name = f"{run.folder.uri}#{run.generation}"
            self._neighbours = Neighbours(name, workers.priority)
        num_cpus = os.cpu_count() or 1
        assignment = Assignment(
            job=run.material.job,
            plan=run.material.plan,
            metadata=run.metadata,
            code=_code_of(run),
            num_slots=workers.max,
            num_threads=max(1, num_cpus // workers.max) if workers.ray_address is None else 1,
            framework=run.material.definition.framework,
            pace=self._pace,
            key=secrets.token_bytes(KEY_BYTES),
            indexes=send(run.material.indexes(), same_machine=workers.ray_address is None),
        )
        # Here it goes with each call: the death of the raylet that had it would end this process.
        self._assignment = assignment if workers.ray_address is None else ray.put(assignment)
        if self._begun:
            self._new_round("Ray was lost")
            self._begun, self._last_trained_s = False, time.monotonic()

    # --- the loop -------------------------------------------------------------------------

    def _run_to_the_end(self, interrupts: Interrupts) -> Trained:
        if not self._num_started:
            self._bad.begin(self._checkpoint)
            self._run.started(self._journal.step)
        while True:
            self._listen()
            self._look_around()
            for action in decide(self._fleet()):
                self._act(action)
            finished = [p for p in self._processes if p.state is State.FINISHED]
            if finished and not self._writes_files(finished):
                trained = self._finish(finished)
                if trained is not None:
                    return trained
            try:
                interrupts.check()
            except BaseException:
                self._keep_what_was_reached()
                raise

    def _writes_files(self, finished: Sequence[_Process]) -> bool:
        """Whether the lowest slot is not done: it writes the files of callbacks.

        One that waits for the others has missed the end and writes nothing.
        """
        now = time.monotonic()
        if self._finished_s is None:
            self._finished_s, self._report_interval_s = now, _POLL_S
        lowest = min(self._training(), key=lambda p: p.slot or 0, default=None)
        if lowest is None or any((p.slot or 0) < (lowest.slot or 0) for p in finished):
            return False
        if lowest.silent_s(now) > _SILENCE_AT_THE_END_S:
            return False
        if now - self._finished_s >= limit_of(self._pace.batch_timeout_s, self._slowest_s):
            return False
        if lowest.report_of_s < self._finished_s:
            # What it was doing before says nothing; a short training may be over before a report.
            return True
        return lowest.report is not None and lowest.report.doing != WAITING

    def _act(self, action: Action) -> None:
        match action:
            case StartProcesses(count):
                for _ in range(count):
                    self._start()
            case Assign(incarnation, slot):
                self._assign(self._process(incarnation), slot)
            case Kill(incarnation, reason):
                self._end(self._process(incarnation), reason)
            case GiveUp(reason, may_pass):
                raise (_GaveUpError if may_pass else TrainingError)(
                    f"{reason} The newest checkpoint is of step {self._newest_step():,}; the same "
                    "command goes on from it."
                )

    def _newest_step(self) -> int:
        return max(self._run.store.steps(), default=0)

    def _close(self) -> None:
        for process in [*self._processes, *self._vacant]:
            _kill(process)
        self._processes, self._vacant = [], []

    def _fleet(self) -> Fleet:
        now = time.monotonic()
        if any(p.state is State.TRAINING for p in self._processes):
            self._last_trained_s = now
        return Fleet(
            min_workers=self._workers.min,
            max_workers=self._workers.max,
            num_spares=self._workers.spare,
            members=[self._member(process, now) for process in self._processes],
            begun=self._begun,
            idle_s=now - self._last_trained_s,
            fruitless_starts=self._fruitless,
            give_up_after_s=self._workers.give_up_after_s,
            hang_timeout_s=limit_of(self._pace.batch_timeout_s, self._slowest_s),
            make_room=self._neighbours is not None and self._neighbours.wait,
        )

    def _look_around(self) -> None:
        """Look after Ray and the Lighthouse; hear which machines go, and what other jobs want."""
        now = time.monotonic()
        if now - self._looked_around_s < _CLUSTER_INTERVAL_S:
            return
        self._looked_around_s = now
        if self._ray.why_lost() is not None:
            # What is left of it may still hand out the newest state.
            self._keep_what_was_reached()
            raise RayLostError
        self._ray.check_room()
        if self._lighthouse.replaced():
            address = self._lighthouse.address
            self._run.reporter.note(f"The Lighthouse died; another one is at {address}.")
            for process in self._processes:
                ask(process.actor, "follow", address)
        if self._neighbours is None or not self._ray.answers():
            return
        self._machines_that_go = machines_that_go()
        members = [self._member(process, now) for process in self._processes]
        num_missing = 0
        if any(member.waits_for_room for member in members):
            num_placed = sum(process.is_placed for process in self._processes)
            num_missing = max(0, self._workers.max - num_placed)
        self._neighbours.tell(num_missing)
        for process in self._vacant.copy():
            if self._neighbours.wait or self._goes(process):
                self._vacant.remove(process)
                _kill(process)

    def _member(self, process: _Process, now: float) -> Member:
        report = process.report
        stuck = report is not None and report.doing.startswith("computing")
        return Member(
            process.incarnation,
            process.state,
            process.slot,
            silent_s=process.silent_s(now) if process.is_placed else 0.0,
            stuck_s=report.doing_s if report is not None and stuck else 0.0,
            machine_goes=self._goes(process),
            waits_for_room=not process.is_placed and now - process.started_s > _PLACING_S,
            joins=process.state is State.TRAINING and not process.carries_on(now),
        )

    def _goes(self, process: _Process) -> bool:
        return process.identity is not None and process.identity.node in self._machines_that_go

    def _process(self, incarnation: int) -> _Process:
        return next(p for p in self._processes if p.incarnation == incarnation)

    # --- workers come and go ----------------------------------------------------------------

    def _start(self) -> None:
        self._num_started += 1
        if self._vacant:
            # A second sooner than a new one, most of it time of a core.
            actor = self._vacant.pop().actor
        else:
            actor = WorkerActor.options(num_gpus=self._workers.gpus).remote(
                self._run_id, self._assignment
            )
        process = _Process(self._num_started, actor)
        # Where there are cores to spare that costs nothing; where there are none, neither does one
        # worker less.
        nobody_waits = len(self._training()) >= self._workers.max
        process.work = actor.prepare.remote(in_background=nobody_waits)
        self._processes.append(process)

    def _assign(self, process: _Process, slot: int) -> None:
        process.state, process.slot = State.TRAINING, slot
        process.heard_s = time.monotonic()
        start = Start(
            slot,
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
                slot=slot,
                incarnation=process.incarnation,
                host=process.identity.host,
                pid=process.identity.pid,
                replaces=self._last_holder.get(slot, 0),
                started=time.time() - (time.monotonic() - process.started_s),
            )
        )
        if slot in self._last_holder:
            self._run.reporter.note(
                f"Worker {slot} is replaced by process {process.identity.pid} on "
                f"{process.identity.host}."
            )
        self._last_holder[slot] = process.incarnation

    def _end(self, process: _Process, reason: str) -> None:
        """End a process that we have given up, or whose actor is dead."""
        _kill(process)
        self._forget(process, reason)

    def _forget(self, process: _Process, reason: str) -> None:
        self._processes.remove(process)
        if self._snapshot_of is not None and self._snapshot_of[0] is process:
            self._snapshot_of = None
        if process.slot is None or process.state is State.FINISHED:
            return
        for other in self._training():
            ask(other.actor, "lost", process.slot)
        self._run.events.write(
            WorkerLeft(
                step=self._journal.step,
                slot=process.slot,
                incarnation=process.incarnation,
                reason=reason,
            )
        )
        aloud(self._run.reporter).note(
            f"Worker {process.slot} {reason}; {len(self._training())} go on."
        )
        if not self._training():
            self._new_round("All workers are gone")

    def _training(self) -> list[_Process]:
        return [p for p in self._processes if p.state is State.TRAINING]

    def _new_round(self, why: str) -> None:
        """Let whoever comes next go on from the newest checkpoint."""
        self._finished_s, self._report_interval_s = None, _REPORT_INTERVAL_S
        self._deaths.of_all(self._journal.step)
        for process in [p for p in self._processes if p.slot is not None]:
            self._processes.remove(process)
            _kill(process)
        restored = self._run.store.latest()
        self._checkpoint = restored.checkpoint if restored is not None else None
        self._round += 1
        self._snapshot_of = None
        self._journal.restart(self._checkpoint)
        self._run.reporter.note(f"{why}: going on from step {self._journal.step:,}.")
        self._bad.begin(self._checkpoint)
        self._run.tell_start(self._journal.step, self._bad.at_start)

    # --- listening ----------------------------------------------------------------------------

    def _listen(self) -> None:
        """Wait a moment for whatever the workers have to say."""
        self._ask()
        waiting: dict[Any, tuple[_Process, str]] = {}
        for process in self._processes:
            if process.work is not None:
                waiting[process.work] = (process, "work")
            if process.question is not None:
                waiting[process.question] = (process, "question")
        if self._snapshot_of is not None:
            waiting[self._snapshot_of[1]] = (self._snapshot_of[0], "snapshot")
        if not waiting:
            time.sleep(_POLL_S)
            return
        next_s = min(process.asked_s for process in self._processes) + self._report_interval_s
        pause_s = max(0.01, next_s - time.monotonic())
        done, _ = ray.wait(list(waiting), timeout=min(pause_s, _POLL_S))
        if done:
            # All that has come by now.
            done, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        now = time.monotonic()
        for answer in done:
            # All of them before any is acted upon: silence must be the worker's, not ours.
            waiting[answer][0].heard_s = now
        for answer in done:
            process, kind = waiting[answer]
            if process in self._processes:
                self._hear(process, kind, answer)
        taken = sum(process.slot is not None for process in self._processes)
        self._journal.details = {"workers": f"{taken}/{self._workers.max}"}
        self._journal.write_steps()

    def _ask(self) -> None:
        """Ask those for news that were not asked a moment ago, and one of them for events."""
        now = time.monotonic()
        publisher = self._publisher()
        for process in self._processes:
            if process.question is None and now - process.asked_s >= self._report_interval_s:
                process.asked_s = now
                process.heard_s = max(process.heard_s, now - self._report_interval_s)
                process.asked_for_events = process is publisher
                process.question = ask(
                    process.actor,
                    "report",
                    self._journal.known,
                    with_events=process.asked_for_events,
                )

    def _hear(self, process: _Process, kind: str, answer: Any) -> None:
        try:
            value = ray.get(answer)
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError as error:
            why = f"died ({type(error).__name__})"
            if isinstance(error, ray.exceptions.OutOfMemoryError):
                why = "ran out of memory"
                if self._memory_losses.are_too_many(self._newest_step()):
                    raise
            self._fruitless += process.state is State.STARTING
            self._end(process, why)
            return
        process.is_placed = True
        match value:
            case Failure():
                raise value.to_error()
            case Left():
                self._end(process, f"left ({value.reason})")
            case Died(working_on):
                self._fruitless += process.state is State.STARTING
                if process.state is State.TRAINING:
                    self._count_death(process, working_on)
                self._forget(process, "died")
                self._vacant.append(process)
            case _:
                self._take(process, kind, value)

    def _count_death(self, dead: _Process, working_on: Sequence[BatchInWork]) -> None:
        suspects = self._deaths.suspects
        found = self._deaths.at(working_on, self._journal.step)
        bad = [] if found is None else [self._bad.add(found)]
        if not bad and self._deaths.suspects == suspects:
            return
        for process in self._training():
            if process is not dead:
                ask(process.actor, "leave_out", bad, self._deaths.suspects)

    def _take(self, process: _Process, kind: str, value: Any) -> None:
        match kind:
            case "question":
                process.question, process.report = None, value
                process.report_of_s = process.asked_s
                if value is not None:
                    self._slowest_s = max(self._slowest_s, value.slowest_s)
                    worker_warnings.repeat(value.warnings)
                if value is not None and process.state is State.TRAINING:
                    self._take_report(process, value)
            case "snapshot":
                self._snapshot_of = None
                if value is not None and not self._journal.save(value):
                    ask(process.actor, "request_snapshot")
            case "work" if process.state is State.STARTING:
                process.work, process.state, process.identity = None, State.READY, value
            case _:
                process.work, process.state = None, State.FINISHED

    def _publisher(self) -> _Process | None:
        """Return who hands out the events: the lowest slot whose worker answers."""
        training = [p for p in self._training() if p.question is None]
        return min(training, key=lambda p: p.slot or 0, default=None)

    def _take_report(self, process: _Process, report: Report) -> None:
        if not report.continues:
            # It has joined a moment ago, or its history is not the one that was told.
            now = time.monotonic()
            if report.point.num_commits > 0 and not any(
                other.carries_on(now) for other in self._training()
            ):
                self._new_round("What was told is not in any worker's history")
            return
        if not process.asked_for_events:
            return
        self._journal.take(report)
        if report.has_snapshot and self._snapshot_of is None:
            # The events before it are told by now.
            answer = ask(process.actor, "take_snapshot", report.confirmed)
            self._snapshot_of = (process, answer)
        elif self._checkpoint_is_due():
            self._last_checkpoint_s = time.monotonic()
            ask(process.actor, "request_snapshot")

    def _checkpoint_is_due(self) -> bool:
        if self._run.material.job.training.checkpoint_steps:
            return False
        interval_s = _CHECKPOINT_INTERVAL_S
        if any(self._goes(process) for process in self._training()):
            # If nobody can take over, there is less to be done again.
            interval_s = _CHECKPOINT_INTERVAL_BEFORE_A_LOSS_S
        return time.monotonic() - self._last_checkpoint_s > interval_s

    # --- the end ------------------------------------------------------------------------------

    def _finish(self, finished: list[_Process]) -> Trained | None:
        """Take the final state and the last events from one worker, so that they agree."""
        for process in finished:
            try:
                report = ray.get(
                    ask(process.actor, "report", self._journal.known, with_events=True),
                    timeout=_PATIENCE_AT_THE_END_S,
                )
                final = ray.get(ask(process.actor, "final"), timeout=_PATIENCE_AT_THE_END_S)
            except ray.exceptions.RayError:
                self._end(process, "died")
                continue
            if not isinstance(final, Snapshot):
                self._end(process, "died")
                continue
            if not report.continues:
                continue
            worker_warnings.repeat(report.warnings)
            self._journal.take(report)
            self._journal.save(final)
            trainer = self._run.material.create_trainer()
            state = split_arrays(final.checkpoint.state)[1]
            # What callbacks have left there belongs to the worker that called them.
            trainer.load_state({**state, **final.published})
            return Trained(trainer, dict(final.checkpoint.metadata["metrics"]))
        self._new_round("The workers that were done are gone")
        return None

    def _keep_what_was_reached(self) -> None:
        """Fetch a last checkpoint: the run is being ended from outside."""
        publisher = min(self._training(), key=lambda p: p.slot or 0, default=None)
        if publisher is None:
            return
        # Somebody waits for it.
        self._report_interval_s = _POLL_S
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(ask(publisher.actor, "request_snapshot"), timeout=5)
            deadline = time.monotonic() + 15
            before = self._run.store.steps()
            while time.monotonic() < deadline and self._run.store.steps() == before:
                # After the death of a raylet its actors are silent: Ray takes long to say so.
                if all(
                    p.silent_s(time.monotonic()) > _SILENCE_AT_THE_END_S for p in self._training()
                ):
                    return
                self._listen()


def _kill(process: _Process) -> None:
    # It may be dead, or on a machine that is out of reach.
    with contextlib.suppress(Exception):
        ray.kill(process.actor)


def _code_of(run: Run) -> Mapping[str, bytes] | None:
    job = run.material.job
    if job.model is None or job.model.zoo is None:
        return None
    return {
        str(path.relative_to(run.code)): path.read_bytes()
        for path in sorted(Path(run.code).rglob("*"))
        if path.is_file()
    }
