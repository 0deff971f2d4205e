"""Aggregator: runs the rounds of federated training, independently of the transport.

    wait until enough parties have joined; each describes its model and its examples
    until the last round:
        request  every connected party trains from the global weights
        wait     for the replies; an unusable one is left out, and its party is reported
        fuse     the usable replies if they reach the quorum; otherwise training fails
        save     weights, the fusion's state and the round number, as one checkpoint
        report   the round, and how the parties evaluated the weights that it began with

A round is a function of the global weights and the parties' data. An aggregator that was killed
and restarted therefore repeats the same requests, the parties give the same replies (`party.py`),
and training continues as if it had not been interrupted. Replies to requests of another round, or
of another training run (`GlobalModel.history`), are left out.

Callers: `engines/federated/training.py` for a simulation, and the aggregator's process of
`flower/`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from elasticdl.artifacts.checkpoint_store import Checkpoint
from elasticdl.engines.federated.control.status import RoundEvaluation, Synced
from elasticdl.engines.federated.protocol.messages import (
    LocalTraining,
)
from elasticdl.engines.federated.server.client_registry import (
    ClientRegistry,
    listed,
    nothing_to_check,
)
from elasticdl.engines.federated.strategies.fusions import FUSIONS
from elasticdl.engines.federated.strategies.privacy import in_words, privately
from elasticdl.engines.federated.strategies.updates import PartyUpdate
from elasticdl.engines.interrupts import Interrupts
from elasticdl.engines.job_messages import without_recording
from elasticdl.engines.progress_bar import metrics_in_words
from elasticdl.errors import TrainingError, UsageError
from elasticdl.evaluation.metrics import add_states
from elasticdl.events import Checkpointed, Evaluated, RoundFinished

if TYPE_CHECKING:
    from elasticdl.engines.attempt import Attempt
    from elasticdl.engines.federated.protocol.parties import Parties
    from elasticdl.engines.federated.strategies.updates import FusionState
    from elasticdl.training.trainer import Metrics, MetricStates, Trainer, Weights

Phase: TypeAlias = Literal["idle", "waiting for parties", "training"]

_POLL_S = 0.05
_ASK_AGAIN_S = 10.0
_FUSION = "fusion/"
_MODEL = "model/"
_PARTIES = "parties/"


@dataclass(frozen=True, eq=False)
class GlobalModel:
    """The global model after a round, with what is needed to continue from it.

    Attributes:
        weights: Parameter path -> array.
        round: The round after which it was saved; 0 for the initial model.
        history: ID of the training run; every start from scratch gets a new one.
        fusion: The fusion's state, such as the momentum of a server optimizer.
        metrics: The latest known metrics.
    """

    weights: Weights
    round: int
    history: str
    fusion: FusionState = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)


@dataclass
class Aggregator:
    """Runs the rounds of a federated training job: sends requests, fuses replies, saves the model.

    Attributes:
        attempt: The attempt: the job, its output and its event log.
        parties: The parties that can receive requests.
        create_trainer: Function (shapes of a party's examples) -> trainer of the job's model. The
            parties' models must have the same arrays as the trainer's model, and the trainer's
            metrics turn the parties' metric states into values.
        metadata: Values to add to the metadata of every checkpoint.
        measure: Function (trainer) -> metric states of the trainer's model on the aggregator's own
            data. None: the aggregator has no data, and the parties evaluate.
        safe_point: Function () that executes pending user commands -> whether to stop training.
            Called while no request is in flight: between two rounds, and while waiting for parties.
        until: The last round to train; stored in the checkpoints.
        model: The current global model; None until a party has described its examples.
        phase: What `run` is doing; "idle" while it is not running.
        registry: Registry of the parties that take part; sends them requests.
    """

    attempt: Attempt
    parties: Parties
    create_trainer: Callable[[Mapping[str, Any]], Trainer]
    metadata: Mapping[str, Any]
    measure: Callable[[Trainer], MetricStates] | None = None
    safe_point: Callable[[], bool] = lambda: False
    until: int = field(init=False)
    model: GlobalModel | None = field(default=None, init=False)
    phase: Phase = field(default="idle", init=False)
    registry: ClientRegistry = field(init=False)

    def __post_init__(self) -> None:
        assert self.attempt.job.federation is not None  # noqa: S101 - a federated job
        self._federation = self.attempt.job.federation
        self._fusion = FUSIONS[self._federation.fusion]
        self._fusion_params = self._fusion.with_defaults(self._federation.fusion_params)
        privacy = self._federation.central_privacy
        self._fuse = self._fusion.fuse if privacy is None else privately(self._fusion, privacy)
        self.registry = ClientRegistry(
            self.attempt,
            self._federation,
            self.parties,
            self.create_trainer,
            self._options,
            self._fusion.needs(self._fusion_params),
        )
        self._evaluated_round = 0
        self.until = self._kept_until = self._federation.num_rounds
        if self.attempt.checkpoint is not None:
            kept = self.attempt.checkpoint.metadata
            self._kept_until = kept.get("num_rounds", self.until)

    def run(self) -> bool:
        """Train up to the round `until`; a later call continues from there.

        Returns:
            Whether all rounds are done; False if a safe point stopped training early.

        Raises:
            TrainingError: Too few parties have joined, or too few reply.
            AggregationError: The replies cannot be combined into one model.
        """
        try:
            with Interrupts() as interrupts:
                self.registry.check = interrupts.check
                self.phase = "waiting for parties"
                if not self.registry.wait(self.safe_point):
                    return False
                self.phase = "training"
                return self._train(self.begin(), interrupts)
        finally:
            self.registry.check = nothing_to_check
            self.phase = "idle"

    def _train(self, model: GlobalModel, interrupts: Interrupts) -> bool:
        self._log_privacy()
        self.attempt.reporter.started("Training", self.until, "rounds", done=model.round)
        if self.until != self._kept_until:
            # A run that resumes from here after a kill must know the new last round.
            self._keep(model)
        while model.round < self.until and not self._is_good_enough(model):
            interrupts.check()
            if self.safe_point():
                return False
            self.model = model = self._next_round(model)
        if not self._evaluates_at_once:
            self._evaluate(model)
            self._keep(model)
        return True

    # --- rounds -----------------------------------------------------------------------------

    def begin(self) -> GlobalModel:
        """Return the model to continue from: the initial one, or that of the last saved round.

        If the job resumes from a checkpoint, the client states in it (of simulated parties) are
        restored as well. If it does not, a party must have joined, because the initial model is
        built for the examples that the party describes.
        """
        if self.model is None:
            self.model = self._beginning()
        return self.model

    def _beginning(self) -> GlobalModel:
        checkpoint = self.attempt.checkpoint
        if checkpoint is None:
            assert self.registry.trainer is not None  # noqa: S101 - a party has joined
            return GlobalModel(_below(_MODEL, self.registry.trainer.state()), 0, uuid.uuid4().hex)
        self.parties.load_state(_below(_PARTIES, checkpoint.state), checkpoint.metadata["parties"])
        without_recording(self.attempt.reporter).note(
            f"Resuming from round {checkpoint.step:,} in {self.attempt.folder.uri}."
        )
        return GlobalModel(
            weights=_below(_MODEL, checkpoint.state),
            round=checkpoint.step,
            history=checkpoint.metadata["history"],
            fusion=_below(_FUSION, checkpoint.state),
            metrics=dict(checkpoint.metadata["metrics"]),
        )

    def _log_privacy(self) -> None:
        privacy, note = self._federation.central_privacy, self.attempt.reporter.note
        if privacy is not None:
            note(in_words(privacy, self.until))
        if self.measure is None and all(
            each.metrics_stay_home for each in self.registry.joined.values()
        ):
            note(
                "The parties do not report metrics (privacy.metrics: false), so the aggregator "
                "has no loss to show."
            )

    def _next_round(self, model: GlobalModel) -> GlobalModel:
        number, started = model.round + 1, time.monotonic()
        self.registry.join_newcomers()
        good, left_out = self.registry.ask("train", number, model.history, model.weights)
        if len(good) < self.registry.needed:
            raise TrainingError(
                f"Round {number}: {len(good)} of {self._federation.num_parties} parties sent a "
                f"usable reply{listed([reply.party for reply in good])}; {self.registry.needed} "
                f"are needed (perc_quorum {self._federation.quorum:g})."
                f"{''.join(f'{chr(10)}  {name}: {why}' for name, why in left_out.items())}\n"
                f"  The model of round {model.round} is saved; run the same command to resume from "
                "it."
            )
        fused = self._fuse(
            model.weights,
            [PartyUpdate(r.party, r.weights, r.num_examples) for r in good],
            model.fusion,
            score=None if self.measure is None else self._loss_of,
            **self._fusion_params,
        )
        if self.measure is None:
            self._write_evaluation(model, {r.party: r.evaluation_metrics for r in good})
        metrics = self._results("training_metrics", [reply.training_metrics for reply in good])
        known = {k: v for k, v in model.metrics.items() if k.startswith("val_")}
        after = replace(
            model,
            weights=fused.weights,
            round=number,
            fusion=fused.state,
            metrics={**metrics, **known},
        )
        seconds = time.monotonic() - started
        self.attempt.events.write(
            RoundFinished(
                step=number,
                parties=fused.chosen or [reply.party for reply in good],
                left_out=left_out,
                num_examples=sum(reply.num_examples for reply in good),
                metrics=metrics,
                seconds=seconds,
                party_metrics={
                    reply.party: self._results("training_metrics", [reply.training_metrics])
                    for reply in good
                    if reply.training_metrics
                },
            )
        )
        for name, why in left_out.items():
            without_recording(self.attempt.reporter).note(f"Round {number} without {name!r}: {why}")
        if self._evaluates_at_once:
            self._evaluate(after)
        self._keep(after)
        self.attempt.reporter.advanced(
            number,
            {
                "parties": f"{len(good)}/{self._federation.num_parties}",
                **{name: f"{metrics[name]:.4g}" for name in ("loss",) if name in metrics},
            },
        )
        return after

    def _options(self, rank: int, evaluates: bool) -> LocalTraining:
        training = self.attempt.job.training
        return LocalTraining(
            num_epochs=self._federation.num_local_epochs,
            minibatch_size=training.minibatch_size,
            seed=training.seed,
            rank=rank,
            proximal_mu=self._fusion.proximal_mu(self._fusion_params),
            keeps_own_weights=self._fusion.keeps_own_weights,
            sends_gradients=self._fusion.sends_gradients,
            evaluate_before=evaluates and not self._evaluates_at_once,
        )

    # --- evaluation ----------------------------------------------------------------------------

    @property
    def _evaluates_at_once(self) -> bool:
        """Whether to evaluate a model right after its round.

        Otherwise, the parties evaluate it at the beginning of the next round, which saves a
        request. True if the result may end training, or if the aggregator has its own data.
        """
        return self.measure is not None or self._federation.termination_accuracy is not None

    def _loss_of(self, weights: Weights) -> float:
        """Return the loss of weights on the aggregator's own data, for a fusion such as `zeno`."""
        assert self.measure is not None  # noqa: S101 - called only then
        states = self.measure(self._restored(GlobalModel(weights, 0, "")))
        return float(self._results("evaluation_metrics", [states])["loss"])

    def _evaluate(self, model: GlobalModel) -> None:
        """Evaluate a model now: on the aggregator's own data, or by a request to the parties."""
        if not model.round:
            return
        if self.measure is not None:
            self._write_evaluation(model, {}, [self.measure(self._restored(model))])
            return
        replies, _ = self.registry.ask("evaluate", model.round, model.history, model.weights)
        self._write_evaluation(model, {r.party: r.evaluation_metrics for r in replies})

    def evaluated(self) -> RoundEvaluation:
        """Evaluate the global model now, at the parties and on the aggregator's own data.

        Returns:
            Each party's metrics, or why it reports none; the metrics over all parties' records; and
            the metrics on the aggregator's own data, empty if it has no data.

        Raises:
            UsageError: There is no global model yet.
            TrainingError: The connected parties could not be determined.
        """
        model, trainer = self.trained()
        self.registry.join_newcomers()
        replies, silent = self.registry.ask("evaluate", model.round, model.history, model.weights)
        for name, joined in self.registry.joined.items():
            if not joined.is_evaluating:
                at_home = "does not report metrics (privacy.metrics: false)"
                silent[name] = at_home if joined.metrics_stay_home else "has no validation data"
        name = "evaluation_metrics"
        own = {} if self.measure is None else self._results(name, [self.measure(trainer)])
        return RoundEvaluation(
            model="global",
            round=model.round,
            parties={r.party: self._results(name, [r.evaluation_metrics]) for r in replies},
            silent=dict(sorted(silent.items())),
            merged=self._results(name, [reply.evaluation_metrics for reply in replies]),
            own_data=own,
        )

    def synced(self) -> Synced:
        """Send the global model to the parties, to adopt as their model; return which have done so.

        Raises:
            UsageError: There is no global model yet.
            TrainingError: No party has adopted it.
        """
        model, _ = self.trained()
        self.registry.join_newcomers()
        replies, left_out = self.registry.ask("sync", model.round, model.history, model.weights)
        if not replies:
            raise TrainingError(
                "No party has adopted the global model."
                f"{''.join(f'{chr(10)}  {name}: {why}' for name, why in left_out.items())}"
            )
        return Synced(model.round, tuple(reply.party for reply in replies), left_out)

    def trained(self) -> tuple[GlobalModel, Trainer]:
        """Return the global model, and a trainer loaded with it.

        Raises:
            UsageError: There is no model yet, or no party has described its examples.
        """
        model = self.model
        if model is None or not model.round:
            raise UsageError("There is no global model yet: no round has finished.")
        if self.registry.trainer is None:
            raise UsageError(
                "No party has joined since the aggregator was started, so the model of round "
                f"{model.round} cannot be used yet. Wait until a party is connected."
            )
        return model, self._restored(model)

    def _write_evaluation(
        self,
        model: GlobalModel,
        by_party: Mapping[str, MetricStates],
        others: Sequence[MetricStates] = (),
    ) -> None:
        """Log the validation metrics of a model, and add them to `model.metrics`.

        They are computed from the sum of all given metric states. Does nothing if there are none,
        or if the model of this round has been logged already.

        Args:
            model: The evaluated model.
            by_party: Party -> metric states on its validation data; empty if none evaluated.
            others: Metric states on the aggregator's own data; empty if it has none.
        """
        metrics = self._results("evaluation_metrics", [*by_party.values(), *others])
        if not metrics or self._evaluated_round == model.round:
            return
        self._evaluated_round = model.round
        model.metrics.update({f"val_{name}": value for name, value in metrics.items()})
        self.attempt.events.write(
            Evaluated(
                step=model.round,
                epoch=model.round,
                metrics=metrics,
                party_metrics={
                    party: self._results("evaluation_metrics", [states])
                    for party, states in by_party.items()
                    if states
                },
            )
        )
        without_recording(self.attempt.reporter).note(
            f"round {model.round}: " + metrics_in_words(metrics, prefix="validation ")
        )

    def _is_good_enough(self, model: GlobalModel) -> bool:
        wanted = self._federation.termination_accuracy
        return wanted is not None and float(model.metrics.get("val_accuracy", 0.0)) >= wanted

    def _results(self, which: str, states: list[MetricStates]) -> dict[str, Any]:
        """Compute metrics from the sum of several metric states.

        Args:
            which: Which metrics of the model the states belong to: `training_metrics` or
                `evaluation_metrics`.
            states: Metric states to sum, such as one mapping per party.
        """
        assert self.registry.trainer is not None  # noqa: S101 - a party has joined
        summed = add_states(states)
        metrics: Metrics = getattr(self.registry.trainer, which)
        return metrics.results(summed) if summed else {}

    # --- checkpoints ----------------------------------------------------------------------------

    def _keep(self, model: GlobalModel) -> None:
        arrays, values = self.parties.state()
        checkpoint = Checkpoint(
            step=model.round,
            state={
                **{f"{_MODEL}{name}": array for name, array in model.weights.items()},
                **{f"{_FUSION}{name}": array for name, array in model.fusion.items()},
                **{f"{_PARTIES}{name}": array for name, array in arrays.items()},
            },
            metadata={
                **self.metadata,
                "history": model.history,
                "metrics": model.metrics,
                "parties": values,
                "good_enough": self._is_good_enough(model),
                "num_rounds": self.until,
            },
        )
        self._kept_until = self.until
        saved = self.attempt.store.save(checkpoint)
        self.attempt.events.write(
            Checkpointed(step=saved.step, blocked_s=saved.blocked_s, num_bytes=saved.num_bytes)
        )

    def _restored(self, model: GlobalModel) -> Trainer:
        trainer = self.registry.trainer
        assert trainer is not None  # noqa: S101 - a party has joined
        state = {**trainer.state(), **{f"{_MODEL}{n}": a for n, a in model.weights.items()}}
        # A trainer counts steps; the global model counts rounds, so its round is the step.
        trainer.load_state({**state, "step": np.array(model.round, np.int64)})
        return trainer


def _below(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        path.removeprefix(prefix): array for path, array in state.items() if path.startswith(prefix)
    }
