"""The `Trainer` protocol: one training step, independent of where it runs.

A `Trainer` is created in the process that trains, from a `ModelDefinition` and one example batch
(for the shapes). It uses a framework; engines know only this protocol. The elastic engine sees
one flat buffer, the federated engine sees `state()`.

Contract (what every trainer guarantees, checked by `tests/contracts/test_trainer.py`):

* **Grouping changes nothing.** `train_steps([a, b])` leaves the same bits as
  `train_steps([a]); train_steps([b])`.
* **train_steps = gradients + apply.** `apply(gradients(b))` is the same update as
  `train_steps([b])`, up to rounding. (One exception, which is logged: an optimizer that squares
  the rows of an embedding one by one cannot do so with a sum of gradients.)
* **No side effects.** `gradients`, `evaluate` and `predict` leave `state()` unchanged, so a step
  that does not commit has no effect.
* **Sums, not means.** Contributions are added up over workers. A `Contribution` holds the
  gradients multiplied by the divisor of the loss (the number of examples, or of time steps that
  are not masked), that divisor itself, example-weighted *changes* of statistics (BatchNorm), and
  metric states. The process that applies the sum divides once, by the summed divisor and the
  summed count, so uneven parts give the same update as the whole batch. A count of 0 means no
  update.
* **Randomness is a function of (seed, step, rank)**, not of accumulated generator state: dropout
  masks are the same after a resume, and different on every rank.
* `load_state(state())` restores everything, bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from elasticdl.data.batch import Arrays, Batch
    from elasticdl.training.monitors import Monitor
    from elasticdl.training.scores import Scores

CALLBACKS = "callbacks/"
"""Prefix of the checkpoint tensors that belong to callbacks."""

MEASURED = "measured/"
"""Prefix of the checkpoint tensors that the last validation measured, where the trainer's differ.

A callback may swap weights for a validation, or change them after it.
"""

MetricStates: TypeAlias = Mapping[str, tuple[np.ndarray[Any, Any], ...]]
"""Metric name -> arrays that are summed over batches and workers. `loss` is always present.

The states of a metric in `Metrics.ordered` are not summed: those of a later batch replace them.
"""

State: TypeAlias = Mapping[str, np.ndarray[Any, Any]]
"""Path -> tensor: `model/...` (weights and statistics) and `optimizer/...` (slots, step)."""

Weights: TypeAlias = Mapping[str, np.ndarray[Any, Any]]
"""Path -> tensor: the part of a `State` under `model/`, without that prefix."""


@dataclass(frozen=True, eq=False)
class Contribution:
    """The contribution of a batch to an update; contributions are added up over workers.

    Attributes:
        buffer: 1-D float32: the divisor of the loss, the gradients multiplied by it, and weighted
            changes of statistics. Only the trainer uses the layout; other code adds up buffers.
        num_examples: Number of examples in all batches that `buffer` sums up.
    """

    buffer: np.ndarray[Any, Any]
    num_examples: int


@dataclass(frozen=True, eq=False)
class StepResult:
    """Losses and metrics of a group of steps.

    Attributes:
        losses: float32 [steps]: mean loss of each step.
        metrics: Metric states, by name. Most are sums over the examples of this group only, to be
            added up. For metrics in `Metrics.ordered`, they include all batches so far, and
            replace the states from before the group.
    """

    losses: np.ndarray[Any, Any]
    metrics: MetricStates


class Metrics(Protocol):
    """Computes the values of metrics from their states, such as an accuracy from two sums."""

    @property
    def ordered(self) -> Collection[str]:
        """Names of metrics whose states cannot be summed over batches, such as a maximum.

        One process carries their states from batch to batch: each call receives the states so far,
        and the states that it returns replace them (`evaluation.metrics.add_states`).
        """
        ...

    def results(self, states: MetricStates) -> dict[str, float | list[float]]:
        """Return the value of each metric; NaN where no example was counted."""
        ...

    def direction(self, name: str) -> Literal["min", "max"] | None:
        """Return "max" if higher values of a metric are better, "min" if lower; None if unknown."""
        ...


class Hooks(Protocol):
    """Passes the events of a run to the user's Keras or PyTorch callbacks.

    Attributes:
        observes_batches: Whether a callback has methods that are called for each batch, so steps
            are not grouped.
        observes_test_batches: Whether a callback has methods that are called for each batch of an
            evaluation.
        callbacks: The user's callbacks, whose attributes checkpoints contain.
        epoch: The current epoch, from 0. The loop sets it, also if it takes over a state within an
            epoch, for which `epoch_begin` is not called again.
        first_step: Number of updates before this epoch. The loop sets it as well.
    """

    observes_batches: bool
    observes_test_batches: bool
    callbacks: Sequence[Any]
    epoch: int
    first_step: int

    @property
    def stored(self) -> Sequence[Any]:
        """Objects of the user's code, besides callbacks, whose contents checkpoints store.

        Such as a loss whose attributes callbacks set. `engines/file_variables.py` warns of
        variables of the file that change, but not of these objects.
        """
        ...

    @property
    def stop_requested(self) -> bool:
        """Whether a callback has requested the end of training."""
        ...

    @property
    def monitored(self) -> Mapping[str, Monitor]:
        """Name of each metric that must be measured -> what needs it, for errors.

        For example `val_loss`, if an early stopping or a scheduler depends on it. A metric that a
        callback may add itself is not among them.
        """
        ...

    def check_sharing(self) -> None:
        """Check that callbacks can act identically on several workers.

        Raises:
            DefinitionError: A callback depends on data of which each worker sees only a part.
        """
        ...

    def train_begin(
        self,
        *,
        num_epochs: int,
        num_steps: int | None,
        resumes: bool,
        num_updates: int | None = None,
        num_full_epochs: int | None = None,
    ) -> None:
        """Report to the callbacks that training starts.

        Args:
            num_epochs: Total number of epochs, including those of earlier attempts.
            num_steps: Steps per epoch; None if unknown in advance.
            resumes: Whether training resumes from a saved state, so that `load_state` follows.
            num_updates: Total number of updates if no callback stops training early; None if
                unknown.
            num_full_epochs: Number of epochs that are trained to their end if no callback stops
                training early; None if unknown. It is less than `num_epochs` if training ends
                earlier, after a maximum number of steps.

        Raises:
            DefinitionError: A learning rate schedule ends before training does.
        """
        ...

    def committed(self, *, leads: bool) -> None:
        """Report that the events so far are final, because all workers have committed their steps.

        Args:
            leads: Whether this process writes the callbacks' files from now on. If another process
                did so before and has died, this one also writes the files for events since the last
                commit. Before the first call, each process writes the files.
        """
        ...

    def epoch_begin(self, epoch: int) -> None:
        """Report to the callbacks that an epoch starts; `epoch` counts from 0."""
        ...

    def batch_begin(self, step: int) -> None:
        """Report to the callbacks that a step starts; called only if `observes_batches`.

        Args:
            step: Step number within the epoch, from 0.
        """
        ...

    def batch_end(self, step: int, logs: Mapping[str, Any]) -> None:
        """Report to the callbacks that a step has ended; called only if `observes_batches`.

        Args:
            step: Step number within the epoch, from 0.
            logs: The metrics of the epoch so far.
        """
        ...

    def test_begin(self) -> None:
        """Report to the callbacks that an evaluation starts."""
        ...

    def test_batch_begin(self, number: int) -> None:
        """Report that batch `number` will be evaluated; called only if `observes_test_batches`."""
        ...

    def test_batch_end(self, number: int, logs: Mapping[str, Any]) -> bool:
        """Report that batch `number` was evaluated; called only if `observes_test_batches`.

        Args:
            number: Batch number, from 0 in each evaluation of a process.
            logs: The metrics of this process's batches so far.

        Returns:
            Whether to continue: False if a callback ends the evaluation with this batch.
        """
        ...

    def test_end(self, logs: Mapping[str, Any]) -> None:
        """Report to the callbacks that an evaluation has ended, with its metrics."""
        ...

    def epoch_end(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Report to the callbacks that an epoch has ended, including its validation."""
        ...

    def train_end(self, logs: Mapping[str, Any]) -> str:
        """Report to the callbacks that training has ended.

        Returns:
            What a callback has restored, as a sentence without a full stop; empty if nothing.
        """
        ...

    def state(self) -> dict[str, Any]:
        """Return the callbacks' state (JSON values) for a checkpoint."""
        ...

    def arrays(self) -> State:
        """Return the arrays that `state` refers to, by name: `callbacks/...`."""
        ...

    def load_state(self, state: Mapping[str, Any], arrays: State) -> None:
        """Restore the callbacks' state.

        Args:
            state: The result of `state`.
            arrays: The result of `arrays`, possibly among others.
        """
        ...


class Trainer(Protocol):
    """Trains one model, a step at a time: the interface between engines and a framework.

    Attributes:
        step: Number of updates so far.
        rank: The worker's rank, which determines its random numbers; may be set between steps.
    """

    step: int
    rank: int

    @property
    def training_metrics(self) -> Metrics:
        """Object that computes metric values from the states that `train_steps` returns."""
        ...

    @property
    def evaluation_metrics(self) -> Metrics:
        """Object that computes metric values from the states that `evaluate` returns."""
        ...

    @property
    def hooks(self) -> Hooks:
        """Object that passes the events of the run to the user's callbacks."""
        ...

    def train_steps(
        self, batches: Sequence[Batch], so_far: MetricStates | None = None
    ) -> StepResult:
        """Train on a group of batches in this process alone: apply one update per batch.

        Args:
            batches: One or more batches of equal size and structure.
            so_far: Metric states of this epoch so far, from which metrics in `Metrics.ordered`
                continue; other metrics do not use them. None: start from empty states.

        Returns:
            The loss of each update, and the metrics of the group.
        """
        ...

    def gradients(
        self, batch: Batch, so_far: MetricStates | None = None
    ) -> tuple[Contribution, StepResult]:
        """Compute the contribution of a batch to the next update, without applying it.

        Args:
            batch: The batch.
            so_far: Metric states of this epoch so far, as for `train_steps`.

        Returns:
            The contribution, and the loss and metrics of this one step.

        Raises:
            DefinitionError: The loss is not a mean over the batch, so a sum over workers would not
                equal the same loss in one process.
        """
        ...

    def apply(self, total: Contribution) -> None:
        """Apply one update.

        Args:
            total: The sum of the contributions of all batches of the update.
        """
        ...

    def evaluate(self, batch: Batch, so_far: MetricStates | None = None) -> MetricStates:
        """Return the batch's metric states (arrays that add up over batches), including the loss.

        Args:
            batch: The batch.
            so_far: The evaluation's states before this batch; see `train_steps`.
        """
        ...

    def require_sums(self, why: str) -> None:
        """Reject metrics whose states cannot be summed over batches; called before the first step.

        `Metrics.ordered` is empty from then on, because such metrics are rejected. A metric that
        could not be tested on the example is tested on the batches that follow, and rejected when
        a test fails.

        Args:
            why: What requires sums, for the error message, such as "several workers".

        Raises:
            DefinitionError: The states of a metric cannot be summed; names the metric.
        """
        ...

    def predict(self, features: Arrays) -> Arrays:
        """Return the model's outputs as numpy arrays, one row per example."""
        ...

    def finish(self) -> None:
        """Turn the trained weights into the weights to publish, once after the last step.

        Averages of the weights, if any, replace the weights. Checkpoints contain the state from
        before this call, so a run that continues from one, with more epochs, gives the same weights
        as a single longer run.
        """
        ...

    @property
    def keeps_averages(self) -> bool:
        """Whether the model has averages of its weights, so that `finish` changes the weights."""
        ...

    @property
    def measures_averages(self) -> bool:
        """Whether `evaluate` uses averages of the weights (EMA, SWA) instead of the weights."""
        ...

    def state(self) -> State:
        """Return copies of all weights, statistics and variables of the optimizer."""
        ...

    def load_state(self, state: State) -> None:
        """Restore all weights, statistics and optimizer variables from a result of `state`.

        Raises:
            CheckpointMismatchError: The names or shapes do not match this model.
        """
        ...


@dataclass(frozen=True, eq=False)
class PerExampleResults:
    """The results of one forward pass over a batch, per example.

    Attributes:
        states: Additive metric states, as `Trainer.evaluate` returns them.
        outputs: The model's outputs, as `Trainer.predict` returns them.
        values: Name -> float64, one value per example: `loss`, and those metrics whose function
            returns one value per example. An example's loss is that of a batch of it alone.
            `loss` is missing where labels come with weights, as for a compiled Keras model, or
            where a model computes its loss itself.
    """

    states: MetricStates
    outputs: Arrays
    values: Mapping[str, np.ndarray[Any, Any]]


@runtime_checkable
class PerExampleEvaluator(Protocol):
    """A trainer that also reports per-example losses and metric values."""

    def evaluate_per_example(
        self, batch: Batch, so_far: MetricStates | None = None
    ) -> PerExampleResults:
        """Evaluate a batch; return its per-example values too. Has no side effects.

        Args:
            batch: The batch.
            so_far: The evaluation's states before this batch, as for `Trainer.evaluate`.
        """
        ...


@runtime_checkable
class SupportsProximalTerm(Protocol):
    """A trainer that supports the proximal term of FedProx: a pull towards given weights."""

    def pull_towards(self, weights: Weights | None, strength: float) -> None:
        """Add `strength` * (w - weights) to the gradient of each parameter from now on.

        This is the gradient of the proximal term of FedProx (Li et al., 2020, equation 2,
        https://arxiv.org/abs/1812.06127), strength / 2 * |w - weights|^2. The reported loss does
        not include the term.

        Args:
            weights: At least the trainable parameters. None: end the pull.
            strength: mu in the paper.
        """
        ...


@runtime_checkable
class SupportsNamedGradients(Protocol):
    """A trainer that can split a `Contribution` into named gradients and statistics."""

    def by_name(self, contribution: Contribution) -> tuple[Weights, Weights]:
        """Return the mean gradient of each parameter and the mean change of each statistic.

        The contribution must be one that `gradients` of this trainer returned. A parameter that
        received no gradient is missing from the result.

        Raises:
            DefinitionError: The divisor of the loss is not the number of examples, so means of
                several contributions cannot be averaged by the number of examples.
        """
        ...


@runtime_checkable
class Exporter(Protocol):
    """A trainer that can export its model for serving."""

    def export(self, folder: Path) -> Sequence[str]:
        """Write the files for serving into an existing folder; return their names."""
        ...


@runtime_checkable
class SupportsWarmup(Protocol):
    """A trainer that can compile its update before a worker joins a job, without applying one."""

    def warm_up(self, contribution: Contribution) -> None:
        """Compile the function behind `apply`, so that the first update does not wait for it.

        The trainer's state is afterwards as before the contribution was computed. With a trainer
        that lacks this method, a worker calls `apply` and then restores the state by `load_state`.

        Args:
            contribution: The contribution of an example, as `gradients` returned it.
        """
        ...


@runtime_checkable
class SharesChecks(Protocol):
    """A trainer that can skip checks that another worker of the job has made.

    The checks run the model on parts of the first batches and of some later ones, to detect models
    whose gradients must not be summed over workers. A check takes several forward passes. If a
    worker that joins a job repeated the checks, all other workers would wait for it.
    """

    def checks_done(self) -> dict[str, Any]:
        """Return which checks this worker has made, as a JSON value for the other workers."""
        ...

    def take_over_checks(self, done: Mapping[str, Any]) -> None:
        """Skip the checks that another worker of the job has made.

        Args:
            done: What `checks_done` of that worker returned.
        """
        ...


@runtime_checkable
class ExportProbe(Protocol):
    """A trainer that can check before training whether its model can be exported."""

    def why_not_exported(self) -> Mapping[str, str]:
        """Return the exports that `export` would omit: name -> reason. Writes no files."""
        ...


@runtime_checkable
class WritesPoints(Protocol):
    """A trainer whose model may write points of its own, such as those of `tf.summary`."""

    def checking(self) -> AbstractContextManager[None]:
        """Return a context manager for calls that only check the model: they write no points."""
        ...


def checking(trainer: Trainer) -> AbstractContextManager[None]:
    """Return a context manager for calls of a trainer that only check the model."""
    return trainer.checking() if isinstance(trainer, WritesPoints) else nullcontext()


@runtime_checkable
class ScheduleProbe(Protocol):
    """A trainer that can report a learning rate schedule that advances with each update.

    N workers make about 1/N as many updates as one process, so such a schedule does not reach its
    end, and the user is warned.
    """

    def schedule_of_updates(self) -> str:
        """Return `file:line` and class of a schedule that advances per update; empty if none does.

        A schedule that advances per epoch does not count.
        """
        ...


@runtime_checkable
class ScoresProbe(Protocol):
    """A trainer that can infer whether a classifier returns probabilities, their logs or logits."""

    def scores(self, shape: tuple[int, ...]) -> Scores | None:
        """Return the kind of a classifier's outputs, such as "logits"; None if unknown.

        Also None if the model is not a classifier.

        Args:
            shape: Shape of the outputs for one example: `(classes,)`, `(1,)` or `()`.
        """
        ...


@runtime_checkable
class LossProbe(Protocol):
    """A trainer that can detect when the model and the loss both apply a softmax or a sigmoid."""

    def repeated_activation(self) -> str:
        """Return a warning if the loss applies an activation after the model's own; else ""."""
        ...


@runtime_checkable
class EvaluationProbe(Protocol):
    """A trainer that can check before training whether evaluating its model would change it."""

    def check_evaluation(self, batch: Batch) -> None:
        """Check that calling the model in evaluation changes none of its weights and buffers.

        Args:
            batch: A representative batch. If this method is not called, the first `evaluate` or
                `predict` makes the check.

        Raises:
            DefinitionError: The model, or its loss, changes a weight or a buffer of the model.
        """
        ...
