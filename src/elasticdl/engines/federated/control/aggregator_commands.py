"""Commands to a running aggregator: executes each one when it is safe, and returns the result.

    status   answered immediately, in the listening thread
    train    executed by a serving aggregator, while it is idle
    sync     )
    eval     )  executed between two rounds, while waiting for parties, or while idle
    save     )
    stop     )

    --serve   idle --train--> waiting for parties --> rounds --> published --> idle --stop--> ends
    without                   waiting for parties --> rounds --> published --> ends

If a training run fails, an aggregator without `--serve` ends. With `--serve`, the caller of `train`
receives the reason. The aggregator becomes idle again, with the model of the last completed round.

Callers: `training.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.engines.engine import Outcome
from elasticdl.engines.federated.control.control_server import NoCommands
from elasticdl.engines.federated.control.saving import save_model
from elasticdl.engines.federated.control.status import (
    AggregatorStatus,
    Saved,
    TrainedRounds,
    facts_of,
    published_round,
)
from elasticdl.errors import ElasticDLError, OutputBusyError, TrainingError, UsageError
from elasticdl.events import JobFailed

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition
    from elasticdl.engines.attempt import Attempt
    from elasticdl.engines.engine import Reporter
    from elasticdl.engines.federated.control.control_server import Command, CommandQueue
    from elasticdl.engines.federated.protocol.wire import Facts
    from elasticdl.engines.federated.server.aggregator import Aggregator

_IDLE_S = 0.2
_VERBS = ("train", "sync", "eval", "save", "stop")


class Followed:
    """Reporter that also sends progress to the caller of the command `train`.

    Args:
        reporter: The job's own reporter.

    Attributes:
        follower: The command `train` whose caller receives the progress; None while no caller
            waits for a training run.
    """

    def __init__(self, reporter: Reporter) -> None:
        self.follower: Command | None = None
        self._reporter = reporter
        self._total = 0

    def started(self, title: str, total: int, unit: str, done: int = 0) -> None:
        """Forward to the job's reporter, and store the total for the messages of `advanced`."""
        self._total = total
        self._reporter.started(title, total, unit, done)

    def advanced(self, done: int, facts: Mapping[str, str]) -> None:
        """Forward to the job's reporter, and send the progress to the caller of `train`."""
        self._reporter.advanced(done, facts)
        text = ", ".join(f"{name} {value}" for name, value in facts.items())
        self._report(f"round {done:,} of {self._total:,}: {text}")

    def note(self, message: str) -> None:
        """Forward to the job's reporter, and send the message to the caller of `train`."""
        self._reporter.note(message)
        self._report(message)

    def ended(self) -> None:
        """Forward to the job's reporter."""
        self._reporter.ended()

    def _report(self, text: str) -> None:
        if self.follower is not None:
            self.follower.note(text)


@dataclass(eq=False)
class AggregatorCommands:
    """Executes the user's commands to an aggregator when it is safe, and reports its status.

    Attributes:
        attempt: The current attempt at the job, with its output and its event log.
        reporter: The job's reporter; it also sends progress to the caller of `train`.
        serves: Whether it trains on command and keeps running afterwards.
        address: The address that parties connect to.
        queue: The queue of commands to execute.
        aggregator: Runs the rounds; None until the connection to the parties is open.
        definition: Definition of the model; None until it is known.
        stopping: Whether it has received `stop`.
    """

    attempt: Attempt
    reporter: Followed
    serves: bool
    address: str
    queue: CommandQueue = field(default_factory=NoCommands)
    aggregator: Aggregator | None = None
    definition: ModelDefinition | None = None
    stopping: bool = False
    _is_train_requested: bool = field(default=False, init=False)
    _published_round: int = field(default=0, init=False)
    _ended_early: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._published_round = published_round(self.attempt.folder.uri)

    # --- in the listening thread ------------------------------------------------------------

    def at_once(self, verb: str, options: Facts) -> Facts | None:
        """Answer `status` or reject an invalid command immediately.

        Returns:
            The result of `status`; None for any other valid command, which is then queued.

        Raises:
            OutputBusyError: The aggregator is already training, or stopping.
            UsageError: The verb is unknown, or this aggregator does not train on command.
        """
        if verb == "status":
            return facts_of(self.status())
        if verb not in _VERBS:
            raise UsageError(
                f"An aggregator has no command {verb!r}; expected one of status, "
                f"{', '.join(_VERBS)}."
            )
        if self.stopping:
            raise OutputBusyError("The aggregator is stopping. Start it again after it has ended.")
        if verb == "train":
            self._refuse_to_train(str(options.get("config", "CONFIG")))
            self._is_train_requested = True
        return None

    def status(self) -> AggregatorStatus:
        """Return the aggregator's status.

        Raises:
            TrainingError: The connected parties could not be determined.
        """
        federation, one = self.attempt.job.federation, self.aggregator
        assert federation is not None  # noqa: S101 - a federated job
        kept = self.attempt.checkpoint
        model = None if one is None else one.model
        reached = kept.step if kept is not None else 0
        metrics = kept.metadata["metrics"] if kept is not None else {}
        return AggregatorStatus(
            state=self._state(),
            round=reached if model is None else model.round,
            num_rounds=federation.num_rounds if one is None else one.until,
            num_parties=federation.num_parties,
            parties={} if one is None else one.registry.seen(),
            # A copy, because the aggregator's own thread adds to it.
            metrics=dict(metrics if model is None else model.metrics),
            output=self.attempt.folder.uri,
            published_round=self._published_round,
            address=self.address,
            pid=os.getpid(),
        )

    def _state(self) -> str:
        if self.stopping:
            return "stopping"
        if self.aggregator is None:
            return "starting"
        one = self.aggregator
        if one.phase == "waiting for parties":
            return one.phase
        if one.phase == "idle" and self.serves and not self._is_train_requested:
            return one.phase
        reached = 0 if one.model is None else one.model.round
        # Just after a `train` command has arrived, `until` is still the previous one.
        return "finishing" if one.phase == "training" and reached >= one.until else "training"

    def _refuse_to_train(self, config: str) -> None:
        """Raise an error if the command `train` is not possible now.

        Args:
            config: The config's name as the caller gave it, for the error message.

        Raises:
            OutputBusyError: The aggregator is training, or about to start or end training.
            UsageError: This aggregator does not serve: it trains without a command.
        """
        status = self.status()
        if status.state == "training" and status.round < status.num_rounds:
            raise OutputBusyError(
                f"Round {status.round + 1} of {status.num_rounds} is in progress; wait until the "
                f"training ends, or stop it: elasticdl federated stop {config}"
            )
        if status.state in {"training", "finishing"}:
            raise OutputBusyError(
                "A training run is starting or ending; run the command again in a few seconds."
            )
        if self._is_train_requested or (not self.serves and status.state == "waiting for parties"):
            raise OutputBusyError(
                "The aggregator is waiting for parties, and trains as soon as they have joined: "
                f"see elasticdl federated status {config}"
            )
        if not self.serves:
            raise UsageError(
                "This aggregator trains once and ends. To train on command, start it with: "
                f"elasticdl federated aggregator {config} --serve"
            )

    # --- between two rounds -----------------------------------------------------------------

    def between_rounds(self) -> bool:
        """Execute the queued commands; called only when no party's reply is pending.

        Returns:
            Whether to stop training: the command `stop` has been executed.
        """
        while not self.stopping and (order := self.queue.take()) is not None:
            self._answer(order)
        return self.stopping

    def _answer(self, order: Command) -> None:
        answers: Mapping[str, Callable[[Command], Facts]] = {
            "sync": self._sync,
            "eval": self._eval,
            "save": self._save,
            "stop": self._stop,
        }
        try:
            order.done(answers[order.verb](order))
        except ElasticDLError as error:
            order.failed(error)

    def _stop(self, order: Command) -> Facts:
        del order
        self.stopping = True
        return facts_of(self._trained(stopped=self._is_under_way()))

    def _sync(self, order: Command) -> Facts:
        del order
        return facts_of(self._one().synced())

    def _eval(self, order: Command) -> Facts:
        del order
        return facts_of(self._one().evaluated())

    def _save(self, order: Command) -> Facts:
        model, trainer = self._one().trained()
        assert self.definition is not None  # noqa: S101 - there is a model
        output = order.options.get("output")
        if output is None:
            beside = Path(self.attempt.folder.uri).parent
            output = str(beside / "saved" / f"round-{model.round}")
        save_model(
            self.attempt.job,
            self.definition,
            trainer,
            model.metrics,
            output=str(output),
            code=self.attempt.scratch,
        )
        return facts_of(Saved(str(output), "global", model.round))

    def _one(self) -> Aggregator:
        if self.aggregator is None:
            raise UsageError("The aggregator is starting; run the command again in a few seconds.")
        return self.aggregator

    def _is_under_way(self) -> bool:
        """Return whether a training run has begun and has not ended."""
        return self.aggregator is not None and self.aggregator.phase != "idle"

    def _trained(self, *, stopped: bool = False) -> TrainedRounds:
        status = self.status()
        return TrainedRounds(
            status.round, status.num_rounds, stopped, status.output, status.metrics
        )

    # --- training runs ----------------------------------------------------------------------

    def train_once(self, publish: Callable[[Aggregator], None]) -> None:
        """Train to the last round, executing commands between the rounds.

        If the command `stop` ends training early, nothing is published.

        Args:
            publish: Function (aggregator) that publishes the TrainedModel, and records it.

        Raises:
            ElasticDLError: Training failed.
        """
        one = self._one()
        if one.run():
            publish(one)
            self.published()
            # Commands that arrived during the last round were accepted, so they must be executed.
            self.between_rounds()
        else:
            self.report_stopped()

    def outcome(self) -> Outcome:
        """Return the outcome of the job; its steps are the rounds of all training runs so far."""
        found = self._trained()
        return Outcome(found.output, found.round, found.metrics, stopped=self._ended_early)

    def report_stopped(self) -> None:
        """Log that a command stopped the training run early, and tell the user how to resume."""
        status, self._ended_early = self.status(), True
        what = f"Stopped after round {status.round:,} of {status.num_rounds:,}"
        self.attempt.events.write(
            # Recorded like Ctrl-C: the progress is saved.
            JobFailed(kind="Interrupted", message=f"{what}.", step=status.round)
        )
        self.reporter.note(f"{what}; run the same command to resume.")

    def published(self) -> None:
        """Record, for `status`, that the model of the current round has been published."""
        self._published_round = self.status().round

    def serve(
        self, begin: Callable[[int, int], None], publish: Callable[[Aggregator], None]
    ) -> BaseException | None:
        """Start a training run at each command `train`, until the command `stop`.

        Args:
            begin: Function (round that the model has reached, last round of the new training run)
                that records the start of a training run.
            publish: Function (aggregator) that publishes the TrainedModel, and records it.

        Returns:
            None after the command `stop`. If Ctrl-C or SIGTERM arrived while the aggregator was
            idle: its exception. The caller raises it at the end, so that the job is not recorded as
            failed.

        Raises:
            ElasticDLError: The aggregator cannot continue to serve.
        """
        one = self._one()
        if self.attempt.checkpoint is not None:
            one.begin()
            one.until = self.attempt.checkpoint.metadata.get("num_rounds", one.until)
        self.reporter.note("Train with: elasticdl federated train CONFIG")
        while not self.stopping:
            try:
                order = self._wait(one)
            except BaseException as error:
                if isinstance(error, Exception):
                    raise
                # No training was in progress, so the interrupt is not a failure.
                return error
            if order is not None:
                self._train(one, order, begin, publish)
        return None

    def _wait(self, one: Aggregator) -> Command | None:
        """Stay idle: execute commands and admit parties until `train` or `stop` arrives.

        Args:
            one: The aggregator that parties join.

        Returns:
            The command `train`; None after `stop`.
        """
        while not self.stopping:
            one.registry.join_newcomers()
            order = self.queue.take(_IDLE_S)
            if order is not None and order.verb == "train":
                return order
            if order is not None:
                self._answer(order)
        return None

    def _train(
        self,
        one: Aggregator,
        order: Command,
        begin: Callable[[int, int], None],
        publish: Callable[[Aggregator], None],
    ) -> None:
        reached = 0 if one.model is None else one.model.round
        one.until = self._until(reached, one.until, order.options)
        self.reporter.follower = order
        failure: ElasticDLError | None = None
        try:
            begin(reached, one.until)
            if one.run():
                publish(one)
                self.published()
            else:
                self.report_stopped()
        except ElasticDLError as error:
            failure = error
            self.attempt.events.write(
                JobFailed(
                    kind=type(error).__name__,
                    message=str(error),
                    step=0 if one.model is None else one.model.round,
                )
            )
        except BaseException:
            order.failed(TrainingError("The aggregator was stopped; its progress is saved."))
            raise
        finally:
            self.reporter.follower = None
            self.reporter.ended()
            # Before the answer, because its receiver may send the next `train` at once.
            self._is_train_requested = False
        if failure is None:
            order.done(facts_of(self._trained(stopped=self._ended_early)))
        else:
            self.reporter.note(f"The training has ended: {failure}")
            order.failed(failure)

    def _until(self, reached: int, until: int, options: Facts) -> int:
        """Return the last round of the training run that a command `train` starts.

        The option `num_rounds` counts from the current round. Without it, a previous run that is
        unfinished or unpublished is completed; after a complete one, the rounds of the config
        follow.

        Args:
            reached: The round that the global model has reached.
            until: Last round of the previous training run.
            options: Options of the command; `num_rounds` is a number of further rounds.
        """
        asked = options.get("num_rounds")
        federation = self.attempt.job.federation
        assert federation is not None  # noqa: S101 - a federated job
        if asked is not None:
            return reached + int(asked)
        if reached < until or self._published_round != reached:
            # An unfinished or unpublished training run is completed first.
            return until
        return reached + federation.num_rounds
