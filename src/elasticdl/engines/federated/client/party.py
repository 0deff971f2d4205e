"""A party of a federation: holds its data, and replies to the aggregator's requests.

    join      describes its model and reports its number of records
    train     evaluates the global weights, trains from them, replies with the new weights
    evaluate  evaluates the global weights
    sync      adopts the global weights as its model, until it trains again

Training is the engines' common loop over the party's own records, so a federation of one party
gives the same model as training without a federation. The optimizer's state, the position in the
data and the callbacks' state stay here, in a checkpoint after each round. An aggregator that was
killed repeats its last request: the party then replies with the stored result and does not train
again. A killed party resumes from its last round.

No reply contains a record or a path, and metrics are sent only if the party's config shares them.
The party does not depend on the transport.

Callers: `simulate.py`, and the client daemon of `flower/`.
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

from elasticdl.artifacts.checkpoint_store import Checkpoint, SavedCheckpoint
from elasticdl.engines import class_numbers
from elasticdl.engines.federated.client.client_state import GRADIENTS
from elasticdl.engines.federated.protocol.messages import (
    LocalTraining,
    Refusal,
    Reply,
    RoundRequest,
    architecture_of,
    digest_of,
)
from elasticdl.engines.feed import TrainingBatch, training_batches
from elasticdl.engines.in_process import InProcessCommitter
from elasticdl.engines.loop import Loop, split_arrays
from elasticdl.engines.progress_bar import Silent
from elasticdl.engines.train_progress import states_from_json, states_to_json
from elasticdl.engines.training_context import TrainingContext, open_context
from elasticdl.errors import DataError, DefinitionError, UsageError
from elasticdl.evaluation.metrics import add_states
from elasticdl.training.complex_numbers import refuse_complex
from elasticdl.training.trainer import Contribution, SupportsNamedGradients, SupportsProximalTerm

if TYPE_CHECKING:
    from elasticdl.data.batch import Arrays, Batch
    from elasticdl.definition import ModelDefinition
    from elasticdl.engines.federated.client.client_state import ClientState, CurrentModel
    from elasticdl.engines.federated.client.recorder import MetricsFile
    from elasticdl.engines.interfaces import Commit
    from elasticdl.engines.train_progress import TrainProgress
    from elasticdl.events import Event
    from elasticdl.job import Job
    from elasticdl.sharding.ledger import Ledger
    from elasticdl.training.trainer import MetricStates, State, Trainer, Weights

_log = logging.getLogger("elasticdl")
_MODEL = "model/"
_METRICS = ("training_metrics", "evaluation_metrics")


@dataclass(frozen=True, eq=False)
class _Opened:
    """Data and trainer of a party, opened once for all requests with the same batch size and seed.

    Attributes:
        way: (batch size, seed) with which the data were opened.
        context: The party's data, opened for training.
        trainer: The party's trainer.
        start: The trainer's initial state.
        has_callbacks: Whether the model's definition has callbacks.
    """

    way: tuple[Any, ...]
    context: TrainingContext
    trainer: Trainer
    start: State
    has_callbacks: bool


@dataclass
class Party:
    """Replies to the aggregator's requests for one party.

    Attributes:
        name: The party's name in the federation.
        job: The party's model and data; the requests specify how to train.
        definition: Definition of the model.
        memory: Stores the party's client state: its checkpoints of the last rounds.
        create_trainer: Function (training context) -> the party's trainer; parties of one process
            may share one.
        shares_metrics: Whether the party's metrics may be sent to the aggregator.
        recorder: Writes the party's own metrics file; None if its config requests none.
        redacts: Whether a `Refusal` contains the error only in redacted form, because the error may
            quote the data. False in a simulation, where all data belong to the same user.
    """

    name: str
    job: Job
    definition: ModelDefinition
    memory: ClientState
    create_trainer: Callable[[TrainingContext], Trainer] = TrainingContext.create_trainer
    shares_metrics: bool = True
    recorder: MetricsFile | None = None
    redacts: bool = True
    _opened: _Opened | None = field(default=None, init=False)

    def open(self) -> int:
        """Open the data and build the model before the first request; return the record count.

        Raises:
            ElasticDLError: The data or the model cannot be used.
        """
        return self._open(LocalTraining(seed=self.job.training.seed)).context.num_records

    def answer(self, request: RoundRequest) -> Reply | Refusal:
        """Execute a request and return the reply; an error becomes a refusal."""
        started = time.monotonic()
        try:
            reply = {
                "join": self._join,
                "train": self._train,
                "evaluate": self._evaluate,
                "sync": self._sync,
            }[request.kind](request)
        except Exception as error:  # noqa: BLE001 - any error must reach the aggregator
            if self.redacts:
                _log.warning("Round %d: %s", request.round, error)
                return Refusal.of(self.name, error, request)
            kind = type(error).__name__
            return Refusal(self.name, kind, str(error), request.history, request.round)
        return replace(reply, seconds=time.monotonic() - started)

    # --- requests ---------------------------------------------------------------------------

    def _join(self, request: RoundRequest) -> Reply:
        opened = self._open(request.options)
        context, trainer = opened.context, opened.trainer
        return self._reply(
            request,
            num_examples=context.num_records,
            is_evaluating=context.validation is not None and self.shares_metrics,
            architecture=architecture_of(weights_of(trainer.state())),
            example=shapes_of(context.example()),
        )

    def _evaluate(self, request: RoundRequest) -> Reply:
        opened = self._open(request.options)
        context, trainer = opened.context, opened.trainer
        _load(trainer, request.weights)
        return self._reply(
            request,
            num_examples=context.num_records,
            evaluation_metrics=self._measured(context, trainer),
        )

    def _train(self, request: RoundRequest) -> Reply:
        opened = self._open(request.options)
        asked = _fingerprint(request)
        done = self.memory.after(request.history, request.round)
        if done is None or done.metadata["asked"] != asked:
            trained = self._differentiated if request.options.sends_gradients else self._trained
            done = trained(request, opened, asked)
            if request.options.sends_gradients:
                # The party made no step, so its model is the one it received.
                self._take_over(replace(request, round=request.round - 1))
            self.memory.keep(done)
        return self._reply(
            request,
            weights=weights_of(done.state),
            num_examples=opened.context.num_records,
            training_metrics=states_from_json(done.metadata["training"]),
            evaluation_metrics=states_from_json(done.metadata["evaluation"]),
        )

    def _sync(self, request: RoundRequest) -> Reply:
        opened = self._open(request.options)
        theirs, own = architecture_of(request.weights), architecture_of(weights_of(opened.start))
        if theirs != own:
            raise DefinitionError(
                f"{opened.context.definition.origin}: its model differs from the global model. "
                "All parties and the aggregator must train the same model."
            )
        self._take_over(request)
        return self._reply(request, num_examples=opened.context.num_records)

    def _take_over(self, request: RoundRequest) -> None:
        state = {f"{_MODEL}{name}": array for name, array in request.weights.items()}
        self.memory.take_over(Checkpoint(request.round, state, {"history": request.history}))

    # --- the party's own commands -----------------------------------------------------------

    def restored(self) -> tuple[CurrentModel, TrainingContext, Trainer]:
        """Return the party's current model, its data, and a trainer loaded with the model.

        They are for the user's commands `eval` and `save`.

        The trainer is the one that serves requests: use it only until the next request.

        Raises:
            UsageError: The party has no model yet.
            CorruptCheckpointError: The client state is damaged.
        """
        current = self.memory.current()
        if current is None:
            raise UsageError(
                f"Party {self.name!r} has no model yet: it has not trained, and none was synced."
            )
        opened = self._opened or self._open(LocalTraining(seed=self.job.training.seed))
        state = {**opened.start, **split_arrays(current.checkpoint.state)[1]}
        if current.which.is_global:
            # A trainer counts steps; the global model counts rounds, so its round is the step.
            state["step"] = np.array(current.which.round, np.int64)
        opened.trainer.load_state(state)
        return current, opened.context, opened.trainer

    # --- training ---------------------------------------------------------------------------

    def _trained(self, request: RoundRequest, opened: _Opened, asked: str) -> Checkpoint:
        """Train for one round; return the checkpoint that becomes the party's client state.

        Args:
            request: The aggregator's request.
            opened: The party's data and trainer.
            asked: Digest of the request, stored to recognize a repeated one.
        """
        options, context, trainer = request.options, opened.context, opened.trainer
        before = self.memory.after(request.history, request.round - 1)
        begins = before or _at_epoch(opened, (request.round - 1) * options.num_epochs)
        own = dict(begins.state)
        state = {**own, **{f"{_MODEL}{name}": a for name, a in request.weights.items()}}
        trainer.rank = options.rank
        evaluation: MetricStates = {}
        if self._measures_before(request):
            trainer.load_state(state)
            evaluation = measured(context, trainer)
        if options.keeps_own_weights and before is not None:
            state = own
        committer = _MetricsCommitter(trainer, options.rank)
        checkpoints = _LastCheckpoint()
        loop = self._loop(opened, committer, checkpoints, request)
        loop.resume(replace(begins, state=state))
        has_stopped = loop.progress.stopped
        if has_stopped and before is not None:
            # A callback has stopped this party's training, so the last training metrics stay valid.
            committer.states = states_from_json(before.metadata["training"])
        if options.proximal_mu:
            _able(trainer, SupportsProximalTerm, "be pulled to the global weights").pull_towards(
                request.weights, options.proximal_mu
            )
        try:
            if not has_stopped:
                loop.run()
                if loop.progress.stopped or trainer.hooks.stop_requested:
                    # Otherwise the next round continues from this state.
                    loop.finish()
                    checkpoints.last = None
        finally:
            if options.proximal_mu:
                _able(trainer, SupportsProximalTerm, "").pull_towards(None, 0.0)
        if not has_stopped and (loop.progress.stopped or trainer.hooks.stop_requested):
            _log.warning(
                "Round %d: a callback stopped the training of party %s. From the next round on it "
                "returns the weights it receives.",
                request.round,
                self.name,
            )
            loop.progress = replace(loop.progress, stopped=True)
        # The loop saves its state at the end of its last epoch, and makes no step after that.
        after = checkpoints.last or loop.checkpoint()
        own_evaluation: MetricStates = {}
        if self.recorder is not None and self.recorder.after_training:
            own_evaluation = measured(context, trainer)
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

    def _differentiated(self, request: RoundRequest, opened: _Opened, asked: str) -> Checkpoint:
        """Compute the gradient of the mean loss over all records, for a fusion of gradients.

        The party does not train. Arguments are as in `_trained`.

        Returns:
            The checkpoint to store, which has the gradients in place of a model's weights.
        """
        context, trainer = opened.context, opened.trainer
        _load(trainer, request.weights)
        evaluation = measured(context, trainer) if self._measures_before(request) else {}
        differentiator = _able(trainer, SupportsNamedGradients, "map its gradients to parameters")
        ledger, total, states = context.initial_progress().ledger, None, []
        batches = training_batches(context.shard_batches, ledger, rank=0, ranks=(0,), num_epochs=1)
        for fed in batches:
            if fed.batch is None:
                continue
            contribution, result = trainer.gradients(fed.batch)
            states.append(result.metrics)
            # float64 while summing: in float32 the last of many batches would be lost.
            buffer = contribution.buffer.astype(np.float64)
            total = _Sum(buffer, contribution.num_examples) + total
        if total is None:
            raise DataError(f"{context.definition.origin}: the data has no batches.")
        mean = Contribution(total.buffer.astype(np.float32), total.num_examples)
        gradients, changes = differentiator.by_name(mean)
        moving = [name for name, change in changes.items() if np.any(change)]
        if moving:
            raise DefinitionError(
                f"{context.definition.origin}: {moving[0]} changes during training but has no "
                "gradient (as in BatchNorm), and only gradients are sent. Use another fusion, such "
                "as fedavg."
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

    def _loop(
        self,
        opened: _Opened,
        committer: InProcessCommitter,
        checkpoints: _LastCheckpoint,
        request: RoundRequest,
    ) -> Loop:
        context, trainer = opened.context, opened.trainer
        num_epochs = request.round * request.options.num_epochs
        rank = request.options.rank

        def open_feed(ledger: Ledger, ranks: Collection[int]) -> Iterator[TrainingBatch]:
            return training_batches(
                context.shard_batches, ledger, rank=rank, ranks=ranks, num_epochs=num_epochs
            )

        return Loop(
            options=replace(context.job.training, num_epochs=num_epochs),
            trainer=trainer,
            committer=committer,
            open_feed=open_feed,
            rank=rank,
            num_records=context.num_records,
            events=_NullLog(),
            checkpoints=checkpoints,
            checkpoint_metadata={},
            reporter=Silent(),
            # After each epoch, as in one process, but only if callbacks can use the result.
            validation=context.validation if opened.has_callbacks else None,
            progress=context.initial_progress(),
            safe_point=lambda: None,
            checkpoint_is_due=lambda: False,
            ranks=(rank,),
            file_variables=context.file_variables,
            check_epoch=context.check_epoch,
        )

    # --- model and metrics ------------------------------------------------------------------

    def _open(self, options: LocalTraining) -> _Opened:
        """Open data and trainer, or reuse them if batch size and seed are the same."""
        own = self.job.training
        way = (options.minibatch_size or own.minibatch_size, options.seed)
        if self._opened is None or self._opened.way != way:
            training = replace(own, minibatch_size=way[0], seed=way[1])
            context, _ = open_context(
                replace(self.job, training=training), definition=self.definition
            )
            class_numbers.require_names(self.definition, context.classes)
            trainer = self.create_trainer(context)
            trainer.require_sums("an aggregator, over parties")
            if trainer.keeps_averages:
                raise DefinitionError(
                    f"{context.definition.origin}: averages of the weights (use_ema of an "
                    "optimizer, averaged_model of a model file) are not supported in a federation: "
                    "they stay at each party, and the weights published would not be averaged. "
                    "Remove them."
                )
            start = trainer.state()
            complex_ones = [n for n, a in weights_of(start).items() if a.dtype.kind == "c"]
            refuse_complex(
                complex_ones, context.definition.origin, "It can be trained without a federation."
            )
            has_callbacks = bool(self.definition.create_callbacks())
            self._opened = _Opened(way, context, trainer, start, has_callbacks)
        return self._opened

    def _measures_before(self, request: RoundRequest) -> bool:
        """Return whether to evaluate the global weights before training.

        The result is sent to the aggregator on request, and written to the party's own metrics file
        if its config says so.
        """
        recorded = self.recorder is not None and self.recorder.before_training
        return recorded or (request.options.evaluate_before and self.shares_metrics)

    def _shared(self, request: RoundRequest, evaluation: MetricStates) -> MetricStates:
        """Return an evaluation if it may be sent to the aggregator, otherwise {}.

        It is sent if the aggregator requested it and the party's config shares metrics.
        """
        return evaluation if request.options.evaluate_before and self.shares_metrics else {}

    def _record(
        self,
        request: RoundRequest,
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

    def _measured(self, context: TrainingContext, trainer: Trainer) -> MetricStates:
        """Evaluate a model for the aggregator; return {} if the config shares no metrics."""
        return measured(context, trainer) if self.shares_metrics else {}

    def _reply(self, request: RoundRequest, **found: Any) -> Reply:
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


class _MetricsCommitter(InProcessCommitter):
    """Committer of the training loop that also sums the metric states of a round's steps.

    The sums are the training metrics of the party's reply.
    """

    states: MetricStates

    def __init__(self, trainer: Trainer, rank: int) -> None:
        super().__init__(trainer, rank=rank)
        self.states = {}

    def commit(
        self, batches: Sequence[TrainingBatch], progress: TrainProgress, *, stop: bool
    ) -> Commit | None:
        commit = super().commit(batches, progress, stop=stop)
        if commit is not None:
            self.states = add_states([self.states, commit.metrics])
        return commit


@dataclass(frozen=True, eq=False)
class _Sum:
    """Sum of gradients over batches, in float64.

    In float32, a small gradient added to a large sum would be lost.
    """

    buffer: np.ndarray[Any, Any]
    num_examples: int

    def __add__(self, other: _Sum | None) -> _Sum:
        if other is None:
            return self
        return _Sum(self.buffer + other.buffer, self.num_examples + other.num_examples)


class _NullLog:
    """Event log that discards all events, to pass to the training loop."""

    def write(self, event: Event) -> None:
        """Discard the event."""

    def publish(self) -> None:
        """Do nothing, because events are discarded."""


class _LastCheckpoint:
    """Checkpoint store that keeps the training loop's last checkpoint, to be saved by the party.

    Attributes:
        last: The last checkpoint; None if there is none, or if the state has changed since.
    """

    last: Checkpoint | None = None

    def save_in_background(self, checkpoint: Checkpoint, *, best: bool = False) -> None:
        """Keep the checkpoint as the last one."""
        del best
        self.last = checkpoint

    def wait(self) -> None:
        """Do nothing, because checkpoints are only kept in memory."""

    def take_saved(self) -> list[SavedCheckpoint]:
        """Return an empty list, because checkpoints are only kept in memory."""
        return []


def _at_epoch(opened: _Opened, epoch: int) -> Checkpoint:
    """Return a checkpoint to begin from, for a party that has none of the previous round.

    Its weights and optimizer have their initial state.

    Args:
        opened: The party's data and trainer.
        epoch: The epoch in which training begins.
    """
    progress = opened.context.initial_progress()
    progress = replace(progress, ledger=replace(progress.ledger, epoch=epoch))
    return Checkpoint(
        step=0,
        state=opened.start,
        metadata={"progress": progress.to_json(), "ranks": [], "hooks": {}, "metrics": {}},
    )


def _fingerprint(request: RoundRequest) -> str:
    """Return a digest of a request's options and weights, to recognize a repeated request."""
    options = repr(dataclasses.astuple(request.options))
    return hashlib.sha256((options + digest_of(request.weights)).encode()).hexdigest()


def measured(context: TrainingContext, trainer: Trainer) -> MetricStates:
    """Evaluate a model on a party's validation data; return {} if it has no such data."""
    validation = context.validation
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
    """Return the shapes and dtypes of one example of a batch, without its values.

    A joining party sends them, so that the aggregator can build its model without data.
    """

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
