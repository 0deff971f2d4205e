"""What a running aggregator does when it is told something.

    status   answered at once, in the thread that listens
    train    taken by an aggregator that serves, while it is idle
    sync     )
    eval     )  between two rounds, while parties are waited for, or while it is idle
    save     )
    stop     )

    --serve   idle --train--> waiting for parties --> rounds --> published --> idle --stop--> ends
    without                   waiting for parties --> rounds --> published --> ends

A training that cannot go on ends an aggregator, but for one that serves: whoever told it to train
is told why, and it is idle again, with the model of the last round that counts.

Callers: `training.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.engines.engine import Outcome
from elasticdl.engines.federated.control import NoOrders
from elasticdl.engines.federated.saving import save_model
from elasticdl.engines.federated.status import (
    AggregatorStatus,
    Saved,
    Trained,
    facts_of,
    published_round,
)
from elasticdl.errors import ElasticDLError, OutputBusyError, TrainingError, UsageError
from elasticdl.events import JobFailed

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition
    from elasticdl.engines.attempt import Attempt
    from elasticdl.engines.engine import Reporter
    from elasticdl.engines.federated.aggregator import Aggregator
    from elasticdl.engines.federated.control import Order, Orders
    from elasticdl.engines.federated.wire import Facts

_IDLE_S = 0.2
_VERBS = ("train", "sync", "eval", "save", "stop")


class Followed:
    """Tells a person, and whoever follows from another terminal; see `engine.Reporter`.

    Args:
        reporter: Who tells the person.

    Attributes:
        follower: Who else is told; None for nobody.
    """

    def __init__(self, reporter: Reporter) -> None:
        self.follower: Order | None = None
        self._reporter = reporter
        self._total = 0

    def started(self, title: str, total: int, unit: str, done: int = 0) -> None:
        """See `engine.Reporter`."""
        self._total = total
        self._reporter.started(title, total, unit, done)

    def advanced(self, done: int, facts: Mapping[str, str]) -> None:
        """See `engine.Reporter`."""
        self._reporter.advanced(done, facts)
        said = ", ".join(f"{name} {value}" for name, value in facts.items())
        self._tell(f"round {done:,} of {self._total:,}: {said}")

    def note(self, message: str) -> None:
        """See `engine.Reporter`."""
        self._reporter.note(message)
        self._tell(message)

    def ended(self) -> None:
        """See `engine.Reporter`."""
        self._reporter.ended()

    def _tell(self, text: str) -> None:
        if self.follower is not None:
            self.follower.note(text)


@dataclass(eq=False)
class AggregatorVerbs:
    """What an aggregator is told, and how it stands; see the module.

    Attributes:
        begun: The job, and its output.
        reporter: That of the job; who tells it to train follows by it.
        serves: It trains when it is told, and stays.
        address: Where parties connect to.
        orders: What it is told.
        aggregator: The rounds; None until there are parties to ask.
        definition: Of the model; None until it is known.
        stopping: It was told to stop.
    """

    begun: Attempt
    reporter: Followed
    serves: bool
    address: str
    orders: Orders = field(default_factory=NoOrders)
    aggregator: Aggregator | None = None
    definition: ModelDefinition | None = None
    stopping: bool = False
    _told_to_train: bool = field(default=False, init=False)
    _published_round: int = field(default=0, init=False)
    _ended_early: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._published_round = published_round(self.begun.folder.uri)

    # --- in the thread that listens ---------------------------------------------------------

    def at_once(self, verb: str, options: Facts) -> Facts | None:
        """Answer what need not wait; see `control.AtOnce`.

        Raises:
            OutputBusyError: It is training already, or stopping.
            UsageError: There is no such verb, or nothing is to be told to train here.
        """
        if verb == "status":
            return facts_of(self.status())
        if verb not in _VERBS:
            raise UsageError(f"An aggregator cannot {verb!r}; it has status, {', '.join(_VERBS)}.")
        if self.stopping:
            raise OutputBusyError("It is stopping. Start it again when it has ended.")
        if verb == "train":
            self._refuse_to_train(str(options.get("config", "CONFIG")))
            self._told_to_train = True
        return None

    def status(self) -> AggregatorStatus:
        """Return how it stands.

        Raises:
            TrainingError: Parties could not be kept track of.
        """
        federation, one = self.begun.job.federation, self.aggregator
        assert federation is not None  # noqa: S101 - a federated job
        kept = self.begun.checkpoint
        model = None if one is None else one.model
        reached = kept.step if kept is not None else 0
        metrics = kept.metadata["metrics"] if kept is not None else {}
        return AggregatorStatus(
            state=self._state(),
            round=reached if model is None else model.round,
            num_rounds=federation.num_rounds if one is None else one.until,
            num_parties=federation.num_parties,
            parties={} if one is None else one.attendance.seen(),
            # A copy: the aggregator's own thread adds to it.
            metrics=dict(metrics if model is None else model.metrics),
            output=self.begun.folder.uri,
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
        if one.phase == "idle" and self.serves and not self._told_to_train:
            return one.phase
        reached = 0 if one.model is None else one.model.round
        # A further training that has only just been told has no new `until` yet.
        return "finishing" if one.phase == "training" and reached >= one.until else "training"

    def _refuse_to_train(self, config: str) -> None:
        """Refuse to train where a training is going on, or is not to be told.

        Args:
            config: What the person who tells it calls its config.

        Raises:
            OutputBusyError: It is.
            UsageError: It trains by itself.
        """
        status = self.status()
        if status.state == "training" and status.round < status.num_rounds:
            raise OutputBusyError(
                f"Round {status.round + 1} of {status.num_rounds} is being trained; wait for the "
                f"end, or stop it: elasticdl federated stop {config}"
            )
        if status.state in {"training", "finishing"}:
            raise OutputBusyError(
                "A training is just beginning or ending; give the command again in some seconds."
            )
        if self._told_to_train or (not self.serves and status.state == "waiting for parties"):
            raise OutputBusyError(
                "It is waiting for parties, and trains as soon as they are there: see elasticdl "
                f"federated status {config}"
            )
        if not self.serves:
            raise UsageError(
                "This aggregator trains by itself and ends. One that trains when it is told is "
                f"started with: elasticdl federated aggregator {config} --serve"
            )

    # --- between two rounds -----------------------------------------------------------------

    def between_rounds(self) -> bool:
        """Do what was told meanwhile; returns whether to stop. See `Aggregator.safe_point`."""
        while not self.stopping and (order := self.orders.take()) is not None:
            self._answer(order)
        return self.stopping

    def _answer(self, order: Order) -> None:
        answers: Mapping[str, Callable[[Order], Facts]] = {
            "sync": self._sync,
            "eval": self._eval,
            "save": self._save,
            "stop": self._stop,
        }
        try:
            order.done(answers[order.verb](order))
        except ElasticDLError as error:
            order.failed(error)

    def _stop(self, order: Order) -> Facts:
        del order
        self.stopping = True
        return facts_of(self._trained(stopped=self._is_under_way()))

    def _sync(self, order: Order) -> Facts:
        del order
        return facts_of(self._one().synced())

    def _eval(self, order: Order) -> Facts:
        del order
        return facts_of(self._one().evaluated())

    def _save(self, order: Order) -> Facts:
        model, trainer = self._one().trained()
        assert self.definition is not None  # noqa: S101 - of a trainer that is there
        output = order.options.get("output")
        if output is None:
            beside = Path(self.begun.folder.uri).parent
            output = str(beside / "saved" / f"round-{model.round}")
        save_model(
            self.begun.job,
            self.definition,
            trainer,
            model.metrics,
            output=str(output),
            code=self.begun.scratch,
        )
        return facts_of(Saved(str(output), "global", model.round))

    def _one(self) -> Aggregator:
        if self.aggregator is None:
            raise UsageError("It is just starting; give the command again in some seconds.")
        return self.aggregator

    def _is_under_way(self) -> bool:
        """Whether a training has begun that is not at its end."""
        return self.aggregator is not None and self.aggregator.phase != "idle"

    def _trained(self, *, stopped: bool = False) -> Trained:
        status = self.status()
        return Trained(status.round, status.num_rounds, stopped, status.output, status.metrics)

    # --- trainings, one after another -------------------------------------------------------

    def train_once(self, publish: Callable[[Aggregator], None]) -> None:
        """Train to the last round, doing what is told meanwhile.

        Args:
            publish: Leaves a TrainedModel, and tells so.

        Raises:
            ElasticDLError: It cannot go on.
        """
        one = self._one()
        if one.run():
            publish(one)
            self.published()
            # What was told during the last round was promised.
            self.between_rounds()
        else:
            self.tell_stopped()

    def outcome(self) -> Outcome:
        """Return what the training came to, or all of them together."""
        found = self._trained()
        return Outcome(found.output, found.round, found.metrics, stopped=self._ended_early)

    def tell_stopped(self) -> None:
        """Write down that a training was told to end before its last round."""
        status, self._ended_early = self.status(), True
        what = f"Stopped after round {status.round:,} of {status.num_rounds:,}"
        self.begun.events.write(
            # As Ctrl-C: what was reached is kept.
            JobFailed(kind="Interrupted", message=f"{what}.", step=status.round)
        )
        self.reporter.note(f"{what}; the same command goes on from there.")

    def published(self) -> None:
        """Note that the model that is there now is published."""
        self._published_round = self.status().round

    def serve(
        self, begin: Callable[[int, int], None], publish: Callable[[Aggregator], None]
    ) -> BaseException | None:
        """Train whenever it is told, until it is told to stop.

        Args:
            begin: Tells that a training begins: the round that it goes on from, its last round.
            publish: Leaves a TrainedModel, and tells so.

        Returns:
            Ctrl-C or SIGTERM, if that ended it while it was idle; None where it was told to stop.

        Raises:
            ElasticDLError: It cannot serve any longer.
        """
        one = self._one()
        if self.begun.checkpoint is not None:
            one.begin()
            one.until = self.begun.checkpoint.metadata.get("num_rounds", one.until)
        self.reporter.note("Train with: elasticdl federated train CONFIG")
        while not self.stopping:
            try:
                order = self._wait(one)
            except BaseException as error:
                if isinstance(error, Exception):
                    raise
                # Nothing was under way that could have failed.
                return error
            if order is not None:
                self._train(one, order, begin, publish)
        return None

    def _wait(self, one: Aggregator) -> Order | None:
        """Do what is told while nothing is trained; returns the order to train."""
        while not self.stopping:
            one.attendance.join_newcomers()
            order = self.orders.take(_IDLE_S)
            if order is not None and order.verb == "train":
                return order
            if order is not None:
                self._answer(order)
        return None

    def _train(
        self,
        one: Aggregator,
        order: Order,
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
                self.tell_stopped()
        except ElasticDLError as error:
            failure = error
            self.begun.events.write(
                JobFailed(
                    kind=type(error).__name__,
                    message=str(error),
                    step=0 if one.model is None else one.model.round,
                )
            )
        except BaseException:
            order.failed(TrainingError("The aggregator was ended; what was reached is kept."))
            raise
        finally:
            self.reporter.follower = None
            self.reporter.ended()
            # Before the answer: whoever has it may ask for the next training.
            self._told_to_train = False
        if failure is None:
            order.done(facts_of(self._trained(stopped=self._ended_early)))
        else:
            self.reporter.note(f"The training has ended: {failure}")
            order.failed(failure)

    def _until(self, reached: int, until: int, options: Facts) -> int:
        """Return the last round of a training that is told now."""
        asked = options.get("num_rounds")
        federation = self.begun.job.federation
        assert federation is not None  # noqa: S101 - a federated job
        if asked is not None:
            return reached + int(asked)
        if reached < until or self._published_round != reached:
            # What was begun and did not come to its end is finished first.
            return until
        return reached + federation.num_rounds
