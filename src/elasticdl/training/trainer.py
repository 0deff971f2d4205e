"""One training step, and nothing of where it runs.

A `Trainer` is made in the process that trains, from a `ModelDefinition` and one example batch
(for shapes). It knows a framework; engines know this protocol only. The elastic engine sees
one flat buffer, the federated engine sees `state()`.

Laws, held by `tests/contracts/test_trainer.py` for every trainer:

* **Grouping changes nothing.** `train_steps([a, b])` leaves the same bits as
  `train_steps([a]); train_steps([b])`.
* **train_steps = gradients + apply.** `apply(gradients(b))` is the same update as
  `train_steps([b])`, to rounding. (One exception, which is logged: where an optimizer squares the
  rows of an embedding one by one, a sum of gradients cannot.)
* **No trace.** `gradients`, `evaluate` and `predict` leave `state()` as it was: a step that
  does not commit never happened.
* **Sums, not means.** A `Contribution` adds up over workers: unscaled gradients times what the
  loss was divided by (examples, or time steps that are not masked), that divisor itself,
  example-weighted *changes* of statistics (BatchNorm), metric states. Who applies it divides once,
  by the summed divisor and the summed count, so uneven parts make the update of the whole.
  Count 0 means no update.
* **Randomness is a function of (seed, step, slot)**, never a state that drifts: dropout
  masks are the same after a resume, and different on every slot.
* `load_state(state())` restores everything, bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from elasticdl.data.batch import Arrays, Batch

CALLBACKS = "callbacks/"
"""Where a checkpoint's tensors begin that callbacks remember; the others are the trainer's own."""

MetricStates: TypeAlias = Mapping[str, tuple[np.ndarray[Any, Any], ...]]
"""Metric name -> arrays that add up over batches and workers. `loss` is always there.

The states of a metric in `Metrics.ordered` do not add up: those of a later batch replace them."""

State: TypeAlias = Mapping[str, np.ndarray[Any, Any]]
"""Path -> tensor: `model/...` (weights and statistics) and `optimizer/...` (slots, step)."""

Weights: TypeAlias = Mapping[str, np.ndarray[Any, Any]]
"""Path -> tensor: the part of a `State` below `model/`, without that prefix."""


@dataclass(frozen=True, eq=False)
class Contribution:
    """What one batch adds to an update.

    Attributes:
        buffer: 1-D float32: what the loss was divided by, gradients times that, and weighted
            changes of statistics. Only the trainer knows the layout; everyone else adds.
        num_examples: How many examples it sums over.
    """

    buffer: np.ndarray[Any, Any]
    num_examples: int


@dataclass(frozen=True, eq=False)
class StepResult:
    """What a group of steps came to.

    Attributes:
        losses: One float32 a step.
        metrics: Additive states over all the examples of the group; for `Metrics.ordered` the
            states after them.
    """

    losses: np.ndarray[Any, Any]
    metrics: MetricStates


class Metrics(Protocol):
    """How additive states become numbers."""

    @property
    def ordered(self) -> Collection[str]:
        """Names of metrics whose states do not add up, such as a maximum.

        One process carries them from batch to batch: each call gets the states so far, and those
        it returns replace them (`evaluation.metrics.add_states`).
        """
        ...

    def results(self, states: MetricStates) -> dict[str, float | list[float]]:
        """Return the value of each metric; NaN where no example was counted."""
        ...

    def direction(self, name: str) -> Literal["min", "max"] | None:
        """Return which values of a metric are better, where the framework says it."""
        ...


class Hooks(Protocol):
    """The moments of a run that a framework's callbacks listen to.

    Attributes:
        observes_batches: A callback wants to see single batches, so steps are not grouped.
        observes_test_batches: A callback wants to see the batches of an evaluation.
    """

    observes_batches: bool
    observes_test_batches: bool

    @property
    def stop_requested(self) -> bool:
        """A callback asked for the training to end."""
        ...

    def check_sharing(self) -> None:
        """Make sure that callbacks can do the same on each of several workers.

        Raises:
            DefinitionError: One looks at what each worker sees a part of.
        """
        ...

    def train_begin(self, *, num_epochs: int, num_steps: int | None, resumes: bool) -> None:
        """Report that training starts.

        Args:
            num_epochs: How many epochs there will be, those of earlier attempts included.
            num_steps: Steps in an epoch; None where that is not known before.
            resumes: `load_state` follows, with what was remembered before.
        """
        ...

    def committed(self, *, leads: bool) -> None:
        """Report that all workers are past the moments that were reported before.

        Args:
            leads: This process writes the callbacks' files from now on, and those of the moments
                since the last commit if the process that led until then has died. A process that
                was never told so leads.
        """
        ...

    def epoch_begin(self, epoch: int) -> None:
        """Tell that an epoch starts (0-based)."""
        ...

    def batch_begin(self, step: int) -> None:
        """Report that a step is about to be made; called only if `observes_batches`.

        Args:
            step: Its number within the epoch, from 0.
        """
        ...

    def batch_end(self, step: int, logs: Mapping[str, Any]) -> None:
        """Report that a step was made; called only if `observes_batches`.

        Args:
            step: As in `batch_begin`.
            logs: The metrics of the epoch so far.
        """
        ...

    def test_begin(self) -> None:
        """Tell that an evaluation starts."""
        ...

    def test_batch_begin(self, number: int) -> None:
        """Report that a batch is about to be evaluated; only if `observes_test_batches`."""
        ...

    def test_batch_end(self, number: int, logs: Mapping[str, Any]) -> None:
        """Report that a batch was evaluated; only if `observes_test_batches`.

        Args:
            number: From 0 in each evaluation of a process.
            logs: The metrics of this process' batches so far.
        """
        ...

    def test_end(self, logs: Mapping[str, Any]) -> None:
        """Tell that an evaluation ended."""
        ...

    def epoch_end(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Tell that an epoch ended."""
        ...

    def train_end(self, logs: Mapping[str, Any]) -> None:
        """Tell that the training is over."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what the callbacks remember (JSON values), for a checkpoint."""
        ...

    def arrays(self) -> State:
        """Return the arrays that callbacks remember, below `callbacks/`; `state` names them."""
        ...

    def load_state(self, state: Mapping[str, Any], arrays: State) -> None:
        """Restore what the callbacks remembered.

        Args:
            state: What `state` returned.
            arrays: What `arrays` returned, and maybe others.
        """
        ...

    def measures_averages(self, state: Mapping[str, Any]) -> bool:
        """Whether evaluations measure other weights than those of the state beside a checkpoint.

        Args:
            state: What `state` returned for that checkpoint.

        Returns:
            They measure what `Trainer.finish` leaves.
        """
        ...


class Trainer(Protocol):
    """One model being trained.

    Attributes:
        step: Number of updates made so far.
        slot: Which worker this is, for randomness; a spare learns it after it was made.
    """

    step: int
    slot: int

    @property
    def training_metrics(self) -> Metrics:
        """Reads the states of `train_steps`."""
        ...

    @property
    def evaluation_metrics(self) -> Metrics:
        """Reads the states of `evaluate`."""
        ...

    @property
    def hooks(self) -> Hooks:
        """The user's callbacks."""
        ...

    def train_steps(
        self, batches: Sequence[Batch], so_far: MetricStates | None = None
    ) -> StepResult:
        """Make one update for each batch: the fused local path.

        Args:
            batches: One or more batches of equal size and structure.
            so_far: This epoch's states before them, for metrics that are `ordered`; others may
                be among them and are ignored. None starts from nothing.
        """
        ...

    def gradients(
        self, batch: Batch, so_far: MetricStates | None = None
    ) -> tuple[Contribution, StepResult]:
        """Return what the batch would add to the next update, without making it.

        Args:
            batch: The batch.
            so_far: As for `train_steps`.

        Raises:
            DefinitionError: The loss is not a mean over the batch, so that sums over workers
                would mean something else than the same loss in one process.
        """
        ...

    def apply(self, total: Contribution) -> None:
        """Make one update from summed contributions."""
        ...

    def evaluate(self, batch: Batch, so_far: MetricStates | None = None) -> MetricStates:
        """Return the batch's additive metric states, the loss among them.

        Args:
            batch: The batch.
            so_far: The evaluation's states before it; see `train_steps`.
        """
        ...

    def require_sums(self, why: str) -> None:
        """Refuse metrics whose states do not add up; called before the first step.

        From then on no metric is `ordered`. One that could not be tried on the example is tried
        on the batches to come, and refused when it is found out.

        Args:
            why: What adds states up, for the error: "several workers".

        Raises:
            DefinitionError: A metric's states do not add up; says which.
        """
        ...

    def predict(self, features: Arrays) -> Arrays:
        """Return the model's outputs as numpy, one row an example."""
        ...

    def finish(self) -> None:
        """Turn the trained weights into those to publish, once after the last step.

        An optimizer that keeps averages of the weights puts them in place; most change nothing.
        The state before is what a checkpoint holds, so that more epochs train as one longer run.
        """
        ...

    @property
    def keeps_averages(self) -> bool:
        """Whether `finish` changes the weights."""
        ...

    def state(self) -> State:
        """Return copies of all weights, statistics and optimizer slots."""
        ...

    def load_state(self, state: State) -> None:
        """Take over a state.

        Raises:
            CorruptCheckpointError: Names or shapes are not this model's.
        """
        ...


@dataclass(frozen=True, eq=False)
class Examined:
    """What one forward pass says of a batch.

    Attributes:
        states: As `Trainer.evaluate` returns them.
        outputs: As `Trainer.predict` returns them.
        values: Name -> float64, one value an example: `loss`, and the metrics that are functions
            of one value an example. An example's loss is that of a batch of it alone.
            There is no `loss` where labels come with weights, as a compiled Keras model's do, or
            where a model computes its loss by itself.
    """

    states: MetricStates
    outputs: Arrays
    values: Mapping[str, np.ndarray[Any, Any]]


@runtime_checkable
class Examiner(Protocol):
    """A trainer that also says what each example of a batch comes to."""

    def examine(self, batch: Batch, so_far: MetricStates | None = None) -> Examined:
        """Evaluate a batch, and keep what an evaluation sums up; leaves no trace.

        Args:
            batch: The batch.
            so_far: As for `Trainer.evaluate`.
        """
        ...


@runtime_checkable
class Pulled(Protocol):
    """A trainer whose steps can be held near some weights."""

    def pull_towards(self, weights: Weights | None, strength: float) -> None:
        """Add `strength` * (w - weights) to the gradient of each parameter from now on.

        That is the gradient of the proximal term of FedProx (Li et al., 2020, equation 2,
        https://arxiv.org/abs/1812.06127), strength / 2 * |w - weights|^2. The loss is told
        without it.

        Args:
            weights: At least the trainable parameters; None lets go.
            strength: mu in the paper.
        """
        ...


@runtime_checkable
class Differentiator(Protocol):
    """A trainer that says what in a `Contribution` belongs to which parameter."""

    def by_name(self, contribution: Contribution) -> tuple[Weights, Weights]:
        """Return the mean gradient of each parameter, and the mean change of each statistic.

        Only after `gradients`; a parameter that no example reached has no gradient.

        Raises:
            DefinitionError: The loss is divided by something else than the number of examples, so
                means of several contributions could not be averaged by that number.
        """
        ...


@runtime_checkable
class Exporter(Protocol):
    """A trainer whose model can be served elsewhere."""

    def export(self, folder: Path) -> Sequence[str]:
        """Write what serving needs into an existing folder; return the names written."""
        ...


@runtime_checkable
class Rehearser(Protocol):
    """A trainer that prepares for updates without making one."""

    def rehearse(self, contribution: Contribution) -> None:
        """Compile what `apply` needs; all is as it was before the contribution was computed.

        Without this method a worker applies an example's contribution before it joins the others,
        and takes back the state from before.
        """
        ...


@runtime_checkable
class ExportProbe(Protocol):
    """A trainer that finds out before the training whether its model can be exported."""

    def why_not_exported(self) -> Mapping[str, str]:
        """Return what `export` would leave out: name -> reason; writes nothing."""
        ...


@runtime_checkable
class EvaluationProbe(Protocol):
    """A trainer that finds out before the training whether its model can be evaluated."""

    def check_evaluation(self, batch: Batch) -> None:
        """Make sure that a call of the model which trains nothing changes nothing.

        Args:
            batch: Like those to come. It is called once; `evaluate` and `predict` ask for it where
                nothing else did.

        Raises:
            DefinitionError: The model, or its loss, changes a weight or a buffer of the model.
        """
        ...
