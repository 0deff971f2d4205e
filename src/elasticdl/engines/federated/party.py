"""One party's side of a federated training: it has the data, and answers questions.

    join      what its model looks like, how many records it has
    train     measures the global weights, trains on from them, answers with what became of them
    evaluate  measures the global weights
    sync      takes the global weights over: they are its model until it trains again

Training is the engines' one loop over the party's own records, so a federated training with one
party is the training it would be alone. Its optimizer, its place in the data and its callbacks'
memory stay here, as a checkpoint after each round: who is asked the same again (the aggregator
may have been killed) answers the same, and a party that was killed goes on where it was.

No record and no path leaves by an answer; nor does a metric, where the party keeps them at home.
It knows nothing of how questions come here.

Callers: `simulate.py`, and the resident process of `flower/`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.artifacts.checkpoint import Checkpoint, SavedCheckpoint
from elasticdl.engines.federated.memory import GRADIENTS
from elasticdl.engines.federated.messages import (
    LocalTraining,
    Refusal,
    Reply,
    Request,
    architecture_of,
    digest_of,
)
from elasticdl.engines.feed import FedBatch, training_batches
from elasticdl.engines.in_process import InProcessCommitter
from elasticdl.engines.loop import Loop, split_arrays
from elasticdl.engines.material import Material, open_material
from elasticdl.engines.place import states_from_json, states_to_json
from elasticdl.engines.progress import Silent
from elasticdl.errors import DataError, DefinitionError, UsageError
from elasticdl.evaluation.metrics import add_states
from elasticdl.training.complex_numbers import refuse_complex
from elasticdl.training.trainer import Contribution, Differentiator, Pulled

if TYPE_CHECKING:
    from elasticdl.data.batch import Arrays, Batch
    from elasticdl.definition import ModelDefinition
    from elasticdl.engines.federated.memory import Current, Memory
    from elasticdl.engines.federated.recorder import MetricsFile
    from elasticdl.engines.place import Place
    from elasticdl.engines.seams import Commit
    from elasticdl.events import Event
    from elasticdl.job import Job
    from elasticdl.sharding.ledger import Ledger
    from elasticdl.training.trainer import MetricStates, State, Trainer, Weights

_log = logging.getLogger("elasticdl")
_MODEL = "model/"
_METRICS = ("training_metrics", "evaluation_metrics")


@dataclass(frozen=True, eq=False)
class _Opened:
    """What a party trains with, as long as it is asked to train in the same way."""

    way: tuple[Any, ...]
    material: Material
    trainer: Trainer
    start: State
    has_callbacks: bool


@dataclass
class Party:
    """Answers what an aggregator asks of one party.

    Attributes:
        name: What it is called in the federation.
        job: Its model and its data; how to train comes with the questions.
        definition: What it trains.
        memory: Where it keeps how it stands.
        create_trainer: Makes its model; parties of one process may share a trainer.
        shares_metrics: Whether what it measures may leave it.
        recorder: Where it writes down what it measures, for itself.
        redacts: What an error says may quote the data: only its redacted form leaves. False where
            whoever asks is the party itself.
    """

    name: str
    job: Job
    definition: ModelDefinition
    memory: Memory
    create_trainer: Callable[[Material], Trainer] = Material.create_trainer
    shares_metrics: bool = True
    recorder: MetricsFile | None = None
    redacts: bool = True
    _opened: _Opened | None = field(default=None, init=False)

    def open(self) -> int:
        """Open the data and make the model before anybody asks; returns how many records it has.

        Raises:
            ElasticDLError: One of them cannot be used.
        """
        return self._open(LocalTraining(seed=self.job.training.seed)).material.num_records

    def answer(self, request: Request) -> Reply | Refusal:
        """Do what is asked, and say what came of it; an error becomes a refusal."""
        started = time.monotonic()
        try:
            reply = {
                "join": self._join,
                "train": self._train,
                "evaluate": self._evaluate,
                "sync": self._sync,
            }[request.kind](request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the aggregator must hear of it
            if self.redacts:
                _log.warning("Round %d: %s", request.round, error)
                return Refusal.of(self.name, error, request)
            kind = type(error).__name__
            return Refusal(self.name, kind, str(error), request.history, request.round)
        return replace(reply, seconds=time.monotonic() - started)

    # --- what can be asked ------------------------------------------------------------------

    def _join(self, request: Request) -> Reply:
        opened = self._open(request.options)
        material, trainer = opened.material, opened.trainer
        return self._reply(
            request,
            num_examples=material.num_records,
            is_evaluating=material.validation is not None and self.shares_metrics,
            architecture=architecture_of(weights_of(trainer.state())),
            example=shapes_of(material.example()),
        )

    def _evaluate(self, request: Request) -> Reply:
        opened = self._open(request.options)
        material, trainer = opened.material, opened.trainer
        _load(trainer, request.weights)
        return self._reply(
            request,
            num_examples=material.num_records,
            evaluation_metrics=self._measured(material, trainer),
        )

    def _train(self, request: Request) -> Reply:
        opened = self._open(request.options)
        asked = _fingerprint(request)
        done = self.memory.after(request.history, request.round)
        if done is None or done.metadata["asked"] != asked:
            trained = self._differentiated if request.options.sends_gradients else self._trained
            done = trained(request, opened, asked)
            if request.options.sends_gradients:
                # It makes no step of its own: the model it has is the one it was sent.
                self._take_over(replace(request, round=request.round - 1))
            self.memory.keep(done)
        return self._reply(
            request,
            weights=weights_of(done.state),
            num_examples=opened.material.num_records,
            training_metrics=states_from_json(done.metadata["training"]),
            evaluation_metrics=states_from_json(done.metadata["evaluation"]),
        )

    def _sync(self, request: Request) -> Reply:
        opened = self._open(request.options)
        theirs, own = architecture_of(request.weights), architecture_of(weights_of(opened.start))
        if theirs != own:
            raise DefinitionError(
                f"{opened.material.definition.origin}: has another model than the one to take "
                "over. All parties and the aggregator train the same model."
            )
        self._take_over(request)
        return self._reply(request, num_examples=opened.material.num_records)

    def _take_over(self, request: Request) -> None:
        state = {f"{_MODEL}{name}": array for name, array in request.weights.items()}
        self.memory.take_over(Checkpoint(request.round, state, {"history": request.history}))

    # --- told here --------------------------------------------------------------------------

    def restored(self) -> tuple[Current, Material, Trainer]:
        """Return the model that the party has now, its data, and a trainer with that model.

        The trainer is the one that answers: it is to be used before the next question only.

        Raises:
            UsageError: It has none yet.
            CorruptCheckpointError: What it has kept is damaged.
        """
        current = self.memory.current()
        if current is None:
            raise UsageError(
                f"Party {self.name!r} has no model yet: it has not trained, and none was synced."
            )
        opened = self._opened or self._open(LocalTraining(seed=self.job.training.seed))
        state = {**opened.start, **split_arrays(current.checkpoint.state)[1]}
        if current.which.is_global:
            # What a round is to the global model, a step is to others.
            state["step"] = np.array(current.which.round, np.int64)
        opened.trainer.load_state(state)
        return current, opened.material, opened.trainer

    # --- training ---------------------------------------------------------------------------

    def _trained(self, request: Request, opened: _Opened, asked: str) -> Checkpoint:
        """Train for one round, and return how the party stands after it."""
        options, material, trainer = request.options, opened.material, opened.trainer
        before = self.memory.after(request.history, request.round - 1)
        begins = before or _at_epoch(opened, (request.round - 1) * options.num_epochs)
        own = dict(begins.state)
        state = {**own, **{f"{_MODEL}{name}": a for name, a in request.weights.items()}}
        trainer.load_state(state)
        trainer.slot = options.slot
        evaluation = self._measured_before(request, material, trainer)
        if options.keeps_own_weights and before is not None:
            state = own
        committer = _Counting(trainer, options.slot)
        loop = self._loop(opened, committer, request)
        loop.resume(replace(begins, state=state))
        has_stopped = loop.place.stopped
        if has_stopped and before is not None:
            # It trains no more. What it last measured while training stands.
            committer.states = states_from_json(before.metadata["training"])
        if options.proximal_mu:
            _able(trainer, Pulled, "be pulled to the global weights").pull_towards(
                request.weights, options.proximal_mu
            )
        try:
            if not has_stopped:
                loop.run()
                if loop.place.stopped or trainer.hooks.stop_requested:
                    # Otherwise the next round continues this training.
                    loop.finish()
        finally:
            if options.proximal_mu:
                _able(trainer, Pulled, "").pull_towards(None, 0.0)
        if not has_stopped and (loop.place.stopped or trainer.hooks.stop_requested):
            _log.warning(
                "Round %d: a callback has ended the training of party %s. From the next round on "
                "it answers with the weights it is sent.",
                request.round,
                self.name,
            )
            loop.place = replace(loop.place, stopped=True)
        after = loop.checkpoint()
        own_evaluation: MetricStates = {}
        if self.recorder is not None and self.recorder.after_training:
            own_evaluation = measured(material, trainer)
        self._record(request, trainer, committer.states, evaluation, own_evaluation)
        return Checkpoint(
            step=request.round,
            state=after.state,
            metadata={
                **after.metadata,
                "history": request.history,
                "asked": asked,
                "training": states_to_json(committer.states),
                "evaluation": states_to_json(self._shared(request, evaluation)),
            },
        )

    def _differentiated(self, request: Request, opened: _Opened, asked: str) -> Checkpoint:
        """Compute the gradient of the mean loss over all records; nothing is trained here."""
        material, trainer = opened.material, opened.trainer
        _load(trainer, request.weights)
        evaluation = self._measured_before(request, material, trainer)
        differentiator = _able(trainer, Differentiator, "say which gradient is of which parameter")
        ledger, total, states = material.first_place().ledger, None, []
        batches = training_batches(material.shard_batches, ledger, slot=0, slots=(0,), num_epochs=1)
        for fed in batches:
            if fed.batch is None:
                continue
            contribution, result = trainer.gradients(fed.batch)
            states.append(result.metrics)
            # float64 while summing: the last of many batches would be lost.
            buffer = contribution.buffer.astype(np.float64)
            total = _Sum(buffer, contribution.num_examples) + total
        if total is None:
            raise DataError(f"{material.definition.origin}: the data have no batch.")
        mean = Contribution(total.buffer.astype(np.float32), total.num_examples)
        gradients, changes = differentiator.by_name(mean)
        moving = [name for name, change in changes.items() if np.any(change)]
        if moving:
            raise DefinitionError(
                f"{material.definition.origin}: {moving[0]} changes while the model trains without "
                "having a gradient (BatchNorm keeps such), and gradients are all that is sent. "
                "Take another fusion, such as fedavg."
            )
        self._record(request, trainer, add_states(states), evaluation, {})
        return Checkpoint(
            step=request.round,
            state={f"{_MODEL}{name}": array for name, array in gradients.items()},
            metadata={
                GRADIENTS: True,
                "history": request.history,
                "asked": asked,
                "training": states_to_json(add_states(states)),
                "evaluation": states_to_json(self._shared(request, evaluation)),
            },
        )

    def _loop(self, opened: _Opened, committer: InProcessCommitter, request: Request) -> Loop:
        material, trainer = opened.material, opened.trainer
        num_epochs = request.round * request.options.num_epochs
        slot = request.options.slot

        def open_feed(ledger: Ledger, slots: Collection[int]) -> Iterator[FedBatch]:
            return training_batches(
                material.shard_batches, ledger, slot=slot, slots=slots, num_epochs=num_epochs
            )

        nowhere = _Nowhere()
        return Loop(
            options=replace(material.job.training, num_epochs=num_epochs),
            trainer=trainer,
            committer=committer,
            open_feed=open_feed,
            slot=slot,
            num_records=material.num_records,
            events=nowhere,
            checkpoints=nowhere,
            checkpoint_metadata={},
            reporter=Silent(),
            # After each epoch, as in one process; but only where somebody looks at it.
            validation=material.validation if opened.has_callbacks else None,
            place=material.first_place(),
            safe_point=lambda: None,
            checkpoint_is_due=lambda: False,
            slots=(slot,),
            file_variables=material.file_variables,
        )

    # --- the rest ---------------------------------------------------------------------------

    def _open(self, options: LocalTraining) -> _Opened:
        """Open the data and make the model, once for as long as it is to train the same way."""
        own = self.job.training
        way = (options.minibatch_size or own.minibatch_size, options.seed)
        if self._opened is None or self._opened.way != way:
            training = replace(own, minibatch_size=way[0], seed=way[1])
            material, _ = open_material(
                replace(self.job, training=training), definition=self.definition
            )
            trainer = self.create_trainer(material)
            trainer.require_sums("an aggregator, over parties")
            if trainer.keeps_averages:
                raise DefinitionError(
                    f"{material.definition.origin}: averages of the weights are kept (use_ema of "
                    "an optimizer, averaged_model of a file), and each party's stay there: the "
                    "federation would publish weights that are not averaged. Remove them."
                )
            start = trainer.state()
            complex_ones = [n for n, a in weights_of(start).items() if a.dtype.kind == "c"]
            refuse_complex(
                complex_ones, material.definition.origin, "It trains without a federation."
            )
            has_callbacks = bool(self.definition.create_callbacks())
            self._opened = _Opened(way, material, trainer, start, has_callbacks)
        return self._opened

    def _measured_before(
        self, request: Request, material: Material, trainer: Trainer
    ) -> MetricStates:
        """Return what the global weights score here, if the aggregator or the recorder asks."""
        recorded = self.recorder is not None and self.recorder.before_training
        asked = request.options.evaluate_before and self.shares_metrics
        return measured(material, trainer) if recorded or asked else {}

    def _shared(self, request: Request, evaluation: MetricStates) -> MetricStates:
        """Return what of an evaluation the aggregator is to hear."""
        return evaluation if request.options.evaluate_before and self.shares_metrics else {}

    def _record(
        self,
        request: Request,
        trainer: Trainer,
        training: MetricStates,
        before: MetricStates,
        after: MetricStates,
    ) -> None:
        if self.recorder is None:
            return
        if not self.recorder.before_training:
            before = {}
        self.recorder.write(
            request.history, request.round, trainer, training=training, before=before, after=after
        )

    def _measured(self, material: Material, trainer: Trainer) -> MetricStates:
        """Return what the model scores on the party's own validation data."""
        return measured(material, trainer) if self.shares_metrics else {}

    def _reply(self, request: Request, **found: Any) -> Reply:
        if not self.shares_metrics:
            found = {name: value for name, value in found.items() if name not in _METRICS}
        return Reply(
            party=self.name,
            kind=request.kind,
            history=request.history,
            round=request.round,
            metrics_stay_home=not self.shares_metrics,
            **found,
        )


class _Counting(InProcessCommitter):
    """Commits here, and adds up what was measured over all epochs of a round."""

    states: MetricStates

    def __init__(self, trainer: Trainer, slot: int) -> None:
        super().__init__(trainer, slot=slot)
        self.states = {}

    def commit(self, batches: Sequence[FedBatch], place: Place, *, stop: bool) -> Commit | None:
        commit = super().commit(batches, place, stop=stop)
        if commit is not None:
            self.states = add_states([self.states, commit.metrics])
        return commit


@dataclass(frozen=True, eq=False)
class _Sum:
    """Contributions added up in float64."""

    buffer: np.ndarray[Any, Any]
    num_examples: int

    def __add__(self, other: _Sum | None) -> _Sum:
        if other is None:
            return self
        return _Sum(self.buffer + other.buffer, self.num_examples + other.num_examples)


class _Nowhere:
    """Takes what a loop tells and keeps nothing: a round is kept as a whole, by the party."""

    def write(self, event: Event) -> None:
        """See `seams.EventSink`."""

    def publish(self) -> None:
        """See `seams.EventSink`."""

    def save_in_background(self, checkpoint: Checkpoint, *, best: bool = False) -> None:
        """See `seams.CheckpointSink`."""

    def wait(self) -> None:
        """See `seams.CheckpointSink`."""

    def take_saved(self) -> list[SavedCheckpoint]:
        """See `seams.CheckpointSink`."""
        return []


def _at_epoch(opened: _Opened, epoch: int) -> Checkpoint:
    """Return a beginning: an optimizer that remembers nothing, at the start of an epoch."""
    place = opened.material.first_place()
    place = replace(place, ledger=replace(place.ledger, epoch=epoch))
    return Checkpoint(
        step=0,
        state=opened.start,
        metadata={"place": place.to_json(), "slots": [], "hooks": {}, "metrics": {}},
    )


def _fingerprint(request: Request) -> str:
    """Return what all that an answer depends on has, and nothing else."""
    options = repr(dataclasses.astuple(request.options))
    return hashlib.sha256((options + digest_of(request.weights)).encode()).hexdigest()


def measured(material: Material, trainer: Trainer) -> MetricStates:
    """Return what a model scores on a party's own validation data; nothing where it has none."""
    validation = material.validation
    if validation is None:
        return {}
    return add_states(
        trainer.evaluate(batch)
        for shard in range(validation.num_shards)
        for batch in validation.batches(shard)
    )


def _load(trainer: Trainer, weights: Weights) -> None:
    state = trainer.state()
    trainer.load_state({**state, **{f"{_MODEL}{name}": a for name, a in weights.items()}})


def weights_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights in a trainer's state, by parameter path."""
    return {
        path.removeprefix(_MODEL): array for path, array in state.items() if path.startswith(_MODEL)
    }


def shapes_of(batch: Batch) -> dict[str, Any]:
    """Return shapes and types of an example, and nothing of what is in it."""

    def of(tree: Arrays) -> Any:
        if tree is None:
            return None
        if isinstance(tree, Mapping):
            return {"dict": {name: of(value) for name, value in tree.items()}}
        if isinstance(tree, (list, tuple)):
            return {type(tree).__name__: [of(value) for value in tree]}
        return {"dtype": str(tree.dtype), "shape": list(tree.shape[1:])}

    return {"features": of(batch.features), "labels": of(batch.labels)}


def _able(trainer: Trainer, protocol: type[Any], what: str) -> Any:
    if not isinstance(trainer, protocol):
        raise DefinitionError(f"A {type(trainer).__name__} cannot {what}.")
    return trainer
