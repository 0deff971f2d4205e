"""The trainer of PyTorch modules; see `training/trainer.py` for its contract.

A step is that of every PyTorch training loop: forward, loss, backward, `optimizer.step()`. The
code around it provides the guarantees: the random generator is seeded for the step and restored
afterwards, buffers are restored where no state may change, and a `Contribution` has the same layout
on every worker, whichever parameters received a gradient:

    | gradients x divisor | changes of buffers | for each parameter, batches that reached it |
    | divisor | 1 |

The divisor is the number by which the sum over examples was divided to give the batch's mean loss
(`losses.py`); the last number counts batches; `statistics.py` defines how changes of buffers add
up. A parameter that received no gradient from any batch keeps its value, as in PyTorch if its
`.grad` is None.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from elasticdl.data.batch import Arrays, Batch, describe, leaves, map_arrays
from elasticdl.data.wording import listed
from elasticdl.definition import Mode, ModelDefinition
from elasticdl.errors import (
    DefinitionError,
    ElasticDLError,
    NonFiniteLossError,
    TrainingError,
    UserCodeError,
    users_traceback,
)
from elasticdl.sharding.permutation import derive_seed
from elasticdl.training import generators
from elasticdl.training.checkpoint_mismatch import check_matches
from elasticdl.training.complex_numbers import ALONE, refuse_complex
from elasticdl.training.failed_part import phase
from elasticdl.training.gradient_weights import check_divides_by_examples
from elasticdl.training.padding_check import PaddingCheck
from elasticdl.training.repeated_checks import RepeatedChecks
from elasticdl.training.torch import export, failures
from elasticdl.training.torch.averages import Averages
from elasticdl.training.torch.buffers import Buffers, differs
from elasticdl.training.torch.callback_changes import Modes
from elasticdl.training.torch.callbacks import Callbacks
from elasticdl.training.torch.clipping import clipping_of
from elasticdl.training.torch.determinism import be_deterministic, keep_uncompiled, seeded
from elasticdl.training.torch.hooks import TorchHooks
from elasticdl.training.torch.inner_loss import InnerLossSteps, check_takes_labels
from elasticdl.training.torch.inputs import Adapter, find_adapter
from elasticdl.training.torch.label_shapes import is_number_per_example
from elasticdl.training.torch.lazy_parameters import (
    computed_from_data,
    missing_buffers,
    tensor_names,
)
from elasticdl.training.torch.lightning_steps import LightningSteps, TrainerProgress
from elasticdl.training.torch.logged_metrics import take_metrics
from elasticdl.training.torch.losses import BatchLoss, TorchLoss
from elasticdl.training.torch.malloc_tuning import ReusedArray, keep_freed_memory
from elasticdl.training.torch.metric_states import OF_TRAINING
from elasticdl.training.torch.metrics import Addends, TorchMetrics, added, summed
from elasticdl.training.torch.optimizer import OptimizerState, gradient_for
from elasticdl.training.torch.outputs import as_plain_containers, copied, to_rows
from elasticdl.training.torch.parameter_moves import ParameterMoves
from elasticdl.training.torch.part_checks import QUIET, PartCheck
from elasticdl.training.torch.precision import MixedPrecision
from elasticdl.training.torch.refusals import (
    Refusals,
    check_class,
    check_has_modes,
    check_has_values,
    parameters_of,
)
from elasticdl.training.torch.schedulers import Schedulers
from elasticdl.training.torch.scores import last_activation, scores_of, takes_logits
from elasticdl.training.torch.statistics import BatchParts, TorchStatistics, change_of, has_room
from elasticdl.training.torch.steps import ForwardSteps, Stepped, Steps, Tensors
from elasticdl.training.torch.structure import Structure
from elasticdl.training.torch.tensors import assign_array, batch_tensors, to_array, to_tensor
from elasticdl.training.torch.untracked_state import (
    check_loss,
    check_no_untracked_state,
    trial_copy,
)
from elasticdl.training.trainer import (
    Contribution,
    MetricStates,
    PerExampleResults,
    State,
    StepResult,
    Weights,
)

if TYPE_CHECKING:
    from elasticdl.definition import Origin
    from elasticdl.training.scores import Scores

_log = logging.getLogger("elasticdl")

# An update is the same on every worker, so random numbers drawn during it use this rank.
_EVERY_RANK = -1


@dataclass(frozen=True, eq=False)
class _Step:
    """The detached loss of a step, and the batch's contribution to the other metrics.

    Attributes:
        loss: The loss.
        metrics: Totals and counts of metrics that are means.
        states: States of metrics that the model updates itself.
    """

    loss: BatchLoss
    metrics: Addends
    states: MetricStates


class TorchTrainer:
    """Trains one PyTorch module; see `trainer.Trainer`.

    Args:
        definition: The model definition.
        example: A representative batch; its values are used only for trial runs that check the
            model.
        minibatch_size: Examples in a full batch.
        seed: Determines the initial weights and, with step and rank, all randomness of steps.
        rank: This worker's rank.
        deterministic: Whether to use deterministic kernels, where PyTorch has them.

    Attributes:
        step: Number of updates so far.
        rank: This worker's rank; may be set between steps.
        model: The user's module.
        optimizer: The user's optimizer.

    Raises:
        DefinitionError: The model does not accept the batch, or the model file returned an object
            that is not one of PyTorch.
        UserCodeError: User code raised while creating the model or the optimizer.
    """

    def __init__(
        self,
        definition: ModelDefinition,
        example: Batch,
        *,
        minibatch_size: int,
        seed: int = 0,
        rank: int = 0,
        deterministic: bool = True,
    ) -> None:
        if deterministic:
            be_deterministic()
        keep_freed_memory()
        self._definition, self._flat = definition, ReusedArray()
        self.step, self.rank, self._seed = 0, rank, seed
        self._last_activation: tuple[str, tuple[int, ...]] = "", ()
        # Names of lazy parameters; see `lazy_parameters.py`.
        self._computed_from_data: list[str] = []
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        # For a batch of another size; None unless the output is a single tensor.
        self._outputs_shape: torch.Size | None = None
        self._takes_float64 = self._returns_float64 = False
        self._precision = MixedPrecision(definition.precision, self._device)
        generators.install()
        keep_uncompiled(generators.__name__)
        self._generators = generators.Generators()
        self._generators.seed(seed)
        with self._generators.used(), seeded(seed % 2**63, self._device):
            self.model = self._create_model()
            self._modes = Modes(self.model, keeps=definition.loss_within == "training_step")
            self._steps = self._create_steps(example)
            self._parameters, given = parameters_of(self.model, definition.where("model"))
            self._buffers = Buffers(self.model)
            self._statistics = TorchStatistics(
                self._buffers, definition.where("model"), self._device
            )
            self._optimizer = OptimizerState(definition, self._parameters, given, self.model)
            self.optimizer = self._optimizer.optimizer
            self._averages = Averages(definition, self.model)
            self._schedulers = Schedulers(definition, self.optimizer, self._parameters, self.model)
            callbacks = Callbacks(definition.create_callbacks(), definition.where("callbacks"))
        self._clip, self._given = clipping_of(definition, callbacks.objects), given
        trained = {id(parameter) for parameter in given}
        self._named_trainable = [
            (name, parameter)
            for name, parameter in self._parameters.items()
            # A callback may unfreeze what is frozen now, so sums over workers reserve room for it.
            if id(parameter) in trained and (parameter.requires_grad or callbacks)
        ]
        self._trainable = [p for _, p in self._named_trainable]
        self._refusals = Refusals(
            self.model, self._parameters, definition.where("model"), kept=self._tensors_kept()
        )
        metrics_of = functools.partial(
            TorchMetrics,
            where=str(definition.origin),
            may_reshape=definition.has_default_input,
            maximizes_loss=all(group.get("maximize") for group in self.optimizer.param_groups),
        )
        self._structure = Structure(self.model, self.optimizer, definition)
        self.training_metrics = metrics_of(
            definition.create_metrics(Mode.TRAINING), why_sums=OF_TRAINING
        )
        self.evaluation_metrics = metrics_of(definition.create_metrics(Mode.EVALUATION))
        self.hooks = TorchHooks(
            callbacks,
            definition,
            self.model,
            self.optimizer,
            self._modes,
            schedulers=self._schedulers,
            drawing=self._drawing,
            changed=lambda: self._refusals.record_trainable(self._parameters),
            stored=[
                *(self.model, *([self._averages.module] if self._averages else [])),
                *self._optimizer.remembered,
                *self._schedulers.remembered,
            ],
        )
        # Two examples, because torch.export treats a size of one as a constant.
        self._example = _rows(example.features, (0, example.num_examples - 1))
        self._find_dtypes(example)
        self._check_nothing_outside(example, minibatch_size)
        self._find_label_shapes(example, minibatch_size)
        self._find_logged(example)
        self._part_check = PartCheck(
            definition.where("model"),
            self.model,
            self._steps,
            loss=self._loss,
            modes=self._modes,
            buffers=self._buffers,
            drawing=lambda moment: self._drawing(self.rank, moment),
        )
        self._padding = PaddingCheck(
            definition.where("loss"),
            "with PyTorch, the ignore_index of cross_entropy()",
        )
        # Number of examples of the largest update so far.
        self._update_size = 0
        # Two, because the checks of each end with their first warning.
        self._repeated, self._repeated_comparisons = (
            RepeatedChecks(definition.origin) for _ in range(2)
        )
        self._is_evaluation_checked = self._has_checked_first_batch = False
        self._anchors: dict[str, torch.Tensor] = {}
        self._pull = 0.0

    # --- the Trainer protocol ----------------------------------------------------------

    def train_steps(
        self, batches: Sequence[Batch], so_far: MetricStates | None = None
    ) -> StepResult:
        """Apply one update per batch; see `trainer.Trainer`."""
        del so_far
        steps = []
        for batch in batches:
            with self._naming_errors("train", batch):
                steps.append(self._forward_backward(batch))
                self._update()
        return _result(steps)

    def gradients(
        self, batch: Batch, so_far: MetricStates | None = None
    ) -> tuple[Contribution, StepResult]:
        """Compute the batch's contribution to the next update; see `trainer.Trainer`.

        Raises:
            DefinitionError: The batch's contribution cannot be added to those of other batches.
        """
        del so_far
        with self._naming_errors("gradients", batch):
            self._refusals.check_sums(self._parameters)
            complex_ones = [name for name, t in self._tensors_kept().items() if t.is_complex()]
            refuse_complex(complex_ones, self._definition.where("model"), ALONE)
            is_due = self._is_due(self._repeated)
            is_compared = self._is_due(self._repeated_comparisons)
            is_early = not self._part_check.is_done(batch.num_examples, self._update_size)
            is_checked = is_due or is_early
            moves = ParameterMoves(self._parameters, with_values=is_checked)
            if is_checked:
                with nullcontext() if is_early else self._repeated.reported(self.step):
                    self._part_check.check(self._batch_tensors(batch), self._update_size)
            self._padding.check(
                batch,
                self._update_size,
                lambda part: self._part_check.measured(self._batch_tensors(part)),
            )
            with self._buffers.restored() as before:
                step = self._forward_backward(batch, is_summed=True)
                self._refusals.check_unmoved(moves.found())
                divisor = float(step.loss.divisor)
                # If no target counts, the mean is 0 / 0 and the sum is 0.
                gradients = [
                    _dense(p).mul_(divisor) if divisor else torch.zeros_like(_dense(p))
                    for p in self._trainable
                ]
                is_finite = not divisor or bool(torch.isfinite(step.loss.value))
                changes = self._statistics.pack(
                    before,
                    batch.num_examples,
                    lambda: self._compare(batch, before),
                    lambda seed, examples=(0, 0): self._draw(batch, before, seed, examples),
                    is_finite=is_finite,
                    again_at=self.step if is_compared else None,
                )
            reached = [float(p.grad is not None) for p in self._trainable]
            tail = torch.tensor([*reached, divisor, 1.0], dtype=torch.float32, device=self._device)
            self._clear_gradients()
        flat = [part.reshape(-1) for part in (*gradients, *changes, tail)]
        buffer = self._flat.of_size(sum(part.numel() for part in flat))
        if self._device.type == "cpu":
            torch.cat(flat, out=torch.from_numpy(buffer))
        else:
            torch.from_numpy(buffer).copy_(torch.cat(flat))
        return Contribution(buffer, batch.num_examples), _result([step])

    def checks_done(self) -> dict[str, Any]:
        """Return which checks this worker has made for whether gradients can be summed, as JSON.

        Another worker passes the result to `take_over_checks`, to skip these checks.
        """
        return {
            "update_size": self._update_size,
            "first": self._part_check.state(),
            "parts": self._repeated.state(),
            "changes": self._repeated_comparisons.state(),
        }

    def take_over_checks(self, done: Mapping[str, Any]) -> None:
        """Skip the checks that another worker has made: `done`, from its `checks_done`."""
        self._update_size = done["update_size"]
        self._part_check.load_state(done["first"])
        self._repeated.load_state(done["parts"])
        self._repeated_comparisons.load_state(done["changes"])

    def apply(self, total: Contribution) -> None:
        """Apply one update from summed contributions; see `trainer.Trainer`.

        Raises:
            DefinitionError: Workers disagree about a statistic.
            NonFiniteLossError: The divisor of the loss is 0: all targets of the update are ignored
                or have weight 0.
        """
        if total.num_examples == 0:
            return
        self._update_size = max(self._update_size, total.num_examples)
        gradients, changes = self._parts(total)
        self._statistics.add(changes)
        for name, parameter in self._named_trainable:
            gradient = gradients.get(name)
            parameter.grad = (
                None
                if gradient is None
                else gradient_for(self.optimizer, gradient.to(parameter.dtype))
            )
        self._update()

    def warm_up(self, contribution: Contribution) -> None:
        """Do nothing, because updates are not compiled; see `trainer.SupportsWarmup`."""

    def require_sums(self, why: str) -> None:
        """Reject metrics whose states cannot be summed; see `trainer.Trainer`."""
        for metrics in (self.training_metrics, self.evaluation_metrics):
            metrics.require_sums(why)

    def evaluate(self, batch: Batch, so_far: MetricStates | None = None) -> MetricStates:
        """Return the batch's additive metric states; see `trainer.Trainer`."""
        self.check_evaluation(batch)
        with (
            self._naming_errors("evaluate", batch),
            self._averages.in_place(),
            self._no_side_effects(),
        ):
            tensors = self._batch_tensors(batch)
            stepped = self._steps.evaluation(self.model, tensors, self._carried(so_far))
            return self._states(stepped, tensors, so_far)

    def predict(self, features: Arrays) -> Arrays:
        """Return the model's outputs as numpy arrays, one row per example."""
        self.check_evaluation(Batch(features, None, 0))
        batch = Batch(features, None, 0)
        with (
            self._naming_errors("predict", batch),
            self._averages.in_place(),
            self._no_side_effects(),
        ):
            outputs = self._steps.outputs(self.model, self._tensors(features))
            return to_rows(outputs, self._definition.where("model"))

    def evaluate_per_example(
        self, batch: Batch, so_far: MetricStates | None = None
    ) -> PerExampleResults:
        """Evaluate a batch, also per example; see `trainer.PerExampleEvaluator`."""
        self.check_evaluation(batch)
        with (
            self._naming_errors("evaluate", batch),
            self._averages.in_place(),
            self._no_side_effects(),
        ):
            tensors = self._batch_tensors(batch)
            stepped = self._steps.evaluation(self.model, tensors, self._carried(so_far))
            states, outputs = self._states(stepped, tensors, so_far), stepped.outputs
            values: dict[str, torch.Tensor] = {}
            if isinstance(self._steps, ForwardSteps):
                values = self.evaluation_metrics.values(outputs, tensors.labels)
                if stepped.loss is not None:
                    values = {"loss": self._steps.per_example_loss(tensors, stepped), **values}
                outputs, _ = stepped.received(tensors)
            else:
                outputs = self._steps.outputs(self.model, tensors.features)
        return PerExampleResults(
            states,
            to_rows(outputs, self._definition.where("model")),
            {name: to_array(column.double()) for name, column in values.items()},
        )

    def scores(self, shape: tuple[int, ...]) -> Scores | None:
        """Return the kind of outputs (probabilities, logits, ...); see `trainer.ScoresProbe`."""
        return scores_of(self.model, self._definition, shape, self._device)

    def repeated_activation(self) -> str:  # noqa: D102 - see trainer.LossProbe
        name, shape = self._last_activation
        # On a GPU, labels that are out of range for a user's loss would end the process.
        if not name or not takes_logits(self._definition, shape, torch.device("cpu")):
            return ""
        loss = self._definition.loss
        which = f"the loss, {type(loss).__name__}," if isinstance(loss, nn.Module) else "the loss"
        return (
            f"{self._definition.where('model')}: the model's outputs are those of a {name}, and "
            f"{which} expects logits, because it applies a softmax or sigmoid itself. With both, "
            f"the model learns slowly and less well. Return the outputs without the {name}; "
            "predictions of classes and their probabilities need none."
        )

    def schedule_of_updates(self) -> str:  # noqa: D102 - see trainer.ScheduleProbe
        return self._schedulers.of_updates()

    def check_evaluation(self, batch: Batch) -> None:
        """Check that evaluation changes no parameter or buffer; see `trainer.EvaluationProbe`."""
        if self._is_evaluation_checked:
            return
        changed: list[str] = []
        problem = None
        # An exception here is raised again by the evaluation itself, which names the batch.
        with suppress(Exception), self._generators.used(), self._no_side_effects() as buffers:
            before = {n: p.detach().clone() for n, p in self._parameters.items()} | buffers
            try:
                tensors = self._batch_tensors(batch)
                outputs = self._steps.check_evaluation(self.model, tensors)
                problem = self.evaluation_metrics.problem(outputs, tensors.labels)
                self._is_evaluation_checked = True
            finally:
                changed = [n for n, t in self._tensors_kept().items() if differs(before[n], t)]
                for name in self._parameters.keys() & changed:
                    self._parameters[name].copy_(before[name])
        is_checked, self._is_evaluation_checked = self._is_evaluation_checked, False
        self._refusals.check_unchanged(changed)
        if problem is not None:
            raise problem
        self._is_evaluation_checked = is_checked

    def _carried(self, so_far: MetricStates | None) -> MetricStates | None:
        """Return `so_far`, or None if no evaluation metric is carried from batch to batch.

        A step that gets None computes the states of its batch alone, which are then added up.
        """
        return so_far if self.evaluation_metrics.ordered else None

    def _states(
        self, stepped: Stepped, batch: Tensors, so_far: MetricStates | None
    ) -> MetricStates:
        """Return the metric states of an evaluated batch, including the loss if there is one.

        Args:
            stepped: The results of the batch.
            batch: The batch.
            so_far: The evaluation's metric states before this batch; see
                `trainer.Trainer.evaluate`.
        """
        states = self.evaluation_metrics.states(
            stepped.outputs, batch.labels, batch.weights, batch.num_examples, so_far
        )
        logged = self.evaluation_metrics.logged(stepped.logged)
        states = {**states, **summed([stepped.metrics]), **logged}
        if stepped.loss is None:
            return states
        loss = _loss_state([float(stepped.loss.value)], [float(stepped.loss.divisor)])
        return {"loss": loss, **states}

    def finish(self) -> None:
        """Replace the weights by their averages, if the model file defines any."""
        self._averages.finish()

    @property
    def keeps_averages(self) -> bool:
        """Whether the model file averages the weights, so that `finish` changes them."""
        return bool(self._averages)

    @property
    def measures_averages(self) -> bool:
        """Whether `evaluate` uses the averaged weights, if the model file defines averages."""
        return bool(self._averages)

    def state(self) -> State:
        """Return copies of all state; parameters without an update have no optimizer state yet.

        Raises:
            DefinitionError: The model or the optimizer has state that no checkpoint can store.
        """
        self._structure.check()
        state = {f"model/{name}": to_array(tensor) for name, tensor in self._tensors_kept().items()}
        state |= {f"optimizer/{path}": a for path, a in self._optimizer.state().items()}
        state |= {f"average/{path}": a for path, a in self._averages.state().items()}
        state |= {f"lr_scheduler/{path}": a for path, a in self._schedulers.state().items()}
        state |= {f"loss_scale/{path}": a for path, a in self._precision.state().items()}
        state["step"] = np.array(self.step, np.int64)
        return state

    def load_state(self, state: State) -> None:
        """Restore all tensors from a result of `state`; see `trainer.Trainer`."""
        tensors = self._tensors_kept()
        arrays = _below("model/", state)
        problems = [
            f"model/{name}: {_shape_of(arrays.get(name))} in the checkpoint, "
            f"{_shape_of(tensors.get(name))} in the model"
            for name in sorted({*tensors, *arrays})
            if name not in tensors
            or name not in arrays
            or tuple(tensors[name].shape) != arrays[name].shape
        ]
        parts = {
            "optimizer/": self._optimizer.load,
            "average/": self._averages.load,
            "lr_scheduler/": self._schedulers.load,
            "loss_scale/": self._precision.load,
        }
        with seeded(0, self._device):
            for prefix, load in parts.items():
                problems = problems or [
                    f"{prefix}{problem}" for problem in load(_below(prefix, state))
                ]
        check_matches(problems)
        with torch.no_grad():
            for name, tensor in tensors.items():
                assign_array(tensor, arrays[name])
        self._clear_gradients()
        self.step = int(state["step"])

    def export(self, folder: Any) -> list[str]:
        """Write the files for serving into a folder; return their names."""
        with self._generators.used():
            arguments = self._steps.arguments(self.model, self._tensors(self._example))
            is_compared = not self._definition.precision
            return export.export(self.model, arguments, folder, is_compared=is_compared)

    def pull_towards(self, weights: Weights | None, strength: float) -> None:
        """Add FedProx's proximal term to gradients from now on; end it if `weights` is None.

        `trainer.SupportsProximalTerm` describes the term and the arguments.
        """
        self._pull = strength
        self._anchors = {
            name: to_tensor(weights[name]).to(parameter)
            for name, parameter in self._named_trainable
            if weights is not None
        }

    def by_name(self, contribution: Contribution) -> tuple[Weights, Weights]:
        """Return the mean gradients and the mean changes of statistics, each by name.

        Call it only after `gradients`; see `trainer.SupportsNamedGradients`.

        Raises:
            DefinitionError: The divisor of the loss is not the number of examples; or the model
                file clips gradients or schedules learning rates, which the process that applies the
                update would not do.
        """
        self._refusals.check_plain_updates(self._definition)
        divisor = float(contribution.buffer[-2])
        check_divides_by_examples(
            divisor, contribution.num_examples, self._definition.where("loss")
        )
        gradients, changes = self._parts(contribution)
        return (
            {name: to_array(g) for name, g in gradients.items() if g is not None},
            {
                name: np.zeros(tuple(tensor.shape), np.float32)
                if (change := changes[name]) is None
                else to_array(change.float())
                for name, tensor in self._buffers.tensors().items()
            },
        )

    def _parts(
        self, total: Contribution
    ) -> tuple[dict[str, torch.Tensor | None], dict[str, torch.Tensor | None]]:
        """Split a contribution into mean gradients and changes of statistics, by name.

        Returns:
            Name of a parameter -> its mean gradient, or None if it has no gradient; and name of a
            statistic -> its change, or None if it is unchanged.

        Raises:
            DefinitionError: Workers disagree about a statistic.
            NonFiniteLossError: The divisor of the loss is 0: all targets are ignored or have
                weight 0.
        """
        tensors = [p for _, p in self._named_trainable]
        sizes = [p.numel() for p in tensors]
        buffer = torch.from_numpy(total.buffer).to(self._device)
        *sums, changes, reached, tail = torch.split(
            buffer, [*sizes, self._statistics.size, len(sizes), 2]
        )
        divisor, num_contributions = tail.tolist()
        if not divisor:
            raise NonFiniteLossError(
                f"{self._definition.where('loss')}: no target of step {self.step + 1} counts for "
                "the "
                "loss: all are ignored or have the weight 0. The mean loss is 0 / 0."
            )
        is_reached = reached.tolist()
        gradients = {
            name: (part / divisor).view_as(parameter) if reached_by else None
            for (name, parameter), part, reached_by in zip(
                self._named_trainable, sums, is_reached, strict=True
            )
        }
        return gradients, self._statistics.unpack(
            changes, total.num_examples, round(num_contributions)
        )

    # --- a step ---------------------------------------------------------------------------

    def _add_pull(self) -> None:
        for name, anchor in self._anchors.items():
            parameter = self._parameters[name]
            if not parameter.requires_grad:
                continue
            term = self._pull * (parameter.detach() - anchor)
            parameter.grad = term if parameter.grad is None else parameter.grad + term

    def _forward_backward(self, batch: Batch, *, is_summed: bool = False) -> _Step:
        """Compute the gradients of the batch's mean loss; return the loss and the metrics.

        Args:
            batch: The batch.
            is_summed: Whether the gradients will be summed over workers, so that the loss must be a
                mean that can be split into parts.
        """
        self._modes.train()
        self._clear_gradients()
        tensors = self._batch_tensors(batch)
        with self._drawing(self.rank):
            stepped = self._steps.training(self.model, tensors)
            loss = stepped.loss
            assert loss is not None  # noqa: S101 - a training step has one
            self._precision.scaled(loss.value).backward()  # type: ignore[no-untyped-call]
            self._precision.unscale(self._gradients())
            self._check_first_batch()
            self._add_pull()
        self._refusals.check_still_trainable(self._parameters)
        self._refusals.check_shapes(self._tensors_kept(), "a step (`forward` or the loss)")
        with torch.no_grad():
            states = self.training_metrics.logged(stepped.logged)
            if is_summed:
                self._steps.check_splits(self.model, tensors, stepped)
                # The check may have run the model on parts of the batch.
                self._modes.train()
            metrics = self.training_metrics.addends(
                stepped.outputs, tensors.labels, tensors.weights, batch.num_examples
            )
        loss = dataclasses.replace(loss, value=loss.value.detach())
        return _Step(loss, {**metrics, **stepped.metrics}, states)

    def _is_due(self, checks: RepeatedChecks) -> bool:
        """Return whether a check is due for the next batch.

        All workers make the check at the same step, so that their models remain equal even if the
        check has an unexpected side effect on the model.
        """
        has_callbacks = bool(self.hooks.callbacks)
        return checks.is_due(self.step, self.hooks.epoch, has_callbacks=has_callbacks)

    def _compare(self, batch: Batch, before: Mapping[str, torch.Tensor]) -> BatchParts:
        """Return the changes that the batch, and each of two parts of it, make to buffers.

        They show how the changes of several workers combine (`statistics.py`). For these runs,
        dropout is turned off and BatchNorm is in evaluation mode. Otherwise BatchNorm would
        normalize a part by another mean than the batch, and the changes that later modules compute
        from that would not add up.

        Args:
            batch: The batch.
            before: Values of the buffers to start from.
        """
        size = batch.num_examples
        if size == 1:
            batch, size = _pair(batch), 2
        tensors, first = self._batch_tensors(batch), max(1, size // 3)

        def changes(rows: slice, start: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return self._changes_from(start, tensors.rows(rows), self.rank)

        whole = changes(slice(None), before)

        def again(shift: int) -> dict[str, torch.Tensor]:
            larger = {
                name: tensor + shift if name in whole and has_room(tensor.dtype, shift) else tensor
                for name, tensor in before.items()
            }
            return changes(slice(None), larger)

        parts = changes(slice(0, first), before), changes(slice(first, size), before)
        return BatchParts(whole, *parts, (first, size - first), again)

    def _draw(
        self,
        batch: Batch,
        before: Mapping[str, torch.Tensor],
        seed: int,
        examples: tuple[int, int],
    ) -> dict[str, torch.Tensor]:
        """Return the changes that two examples make to buffers, with the same draws on all workers.

        The random numbers that a model draws may depend on the number of examples in its batch. So
        the model is run on two examples on each worker, however large the worker's batch is.

        Args:
            batch: The batch that contains the examples.
            before: Values of the buffers to start from.
            seed: Determines the random numbers, together with the step.
            examples: Indices of the two examples; they may be the same.
        """
        tensors = self._batch_tensors(_pair(batch, examples))
        return self._changes_from(before, tensors, _EVERY_RANK, seed + 1)

    def _changes_from(
        self, start: Mapping[str, torch.Tensor], batch: Tensors, rank: int, *moment: int
    ) -> dict[str, torch.Tensor]:
        """Run the model on a batch; return the change of each buffer by name; restore the buffers.

        Args:
            start: Values of the buffers before the batch.
            batch: The batch.
            rank: This worker's rank, or `_EVERY_RANK` for draws that are equal on all workers.
            moment: Further numbers of the seed, which distinguish several runs in one step.
        """
        quiet = [m for m in self.model.modules() if isinstance(m, QUIET) and m.training]
        now = {name: tensor.clone() for name, tensor in self._buffers.tensors().items()}
        try:
            for module in quiet:
                module.training = False
            self._buffers.set(start)
            with torch.no_grad(), self._drawing(rank, *moment):
                self._steps.touch(self.model, batch)
            after = self._buffers.tensors()
            found = {name: change_of(start[name], after[name]) for name in after}
        finally:
            for module in quiet:
                module.training = True
            self._buffers.set(now)
        return {name: change for name, change in found.items() if change is not None}

    def _update(self) -> None:
        with self._drawing(_EVERY_RANK):
            if self._precision.accepts(self._gradients()):
                if self._clip is not None:
                    self._clip(self._clipped())
                self._optimizer.step()
                self._refusals.check_shapes(
                    self._tensors_kept(), "the optimizer, or one of its hooks,"
                )
        # Gradients are kept until the next forward pass, as in a plain loop: callbacks read them.
        self._averages.update()
        self.step += 1
        self._schedulers.updated(self.step - self.hooks.first_step)
        if self.step & (self.step - 1) == 0:
            self._structure.check()

    def _clipped(self) -> Sequence[nn.Parameter]:
        """Return the parameters whose gradients are clipped: as in Lightning, the optimizer's.

        A plain loop clips those of the model, whichever the optimizer has.
        """
        if self._definition.loss_within != "training_step":
            return self._given
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _gradients(self) -> list[torch.Tensor]:
        return [p.grad for p in self._parameters.values() if p.grad is not None]

    def _check_first_batch(self) -> None:
        """Warn after the first batch: no gradients, or initial values from too few records."""
        if self._has_checked_first_batch:
            return
        self._has_checked_first_batch = True
        if self._computed_from_data and not self.step:
            _log.warning(
                "%s: the initial values of %s depend on the data: the module computes them from "
                "its first batch, which has only a few records here. To choose that batch, call "
                "the model on it in custom_model().",
                self._definition.where("model"),
                listed(self._computed_from_data),
            )
        if self._unchecked:
            _log.warning(
                "%s: it is unknown whether the model keeps values that no checkpoint stores "
                "(counters, means or flags in attributes, hooks or variables), because %s. If it "
                "does, a resumed training continues differently; keep them in buffers.",
                self._definition.where("model"),
                self._unchecked,
            )
        has_trainable = any(p.requires_grad for p in self._parameters.values())
        if has_trainable and not self._gradients():
            _log.warning(
                "%s: the loss gives no parameter of the model a gradient, so the weights will not "
                "change. A tensor made of numbers (torch.tensor(...)), .detach(), .item(), "
                ".numpy() and torch.no_grad() have no gradient: compute the loss from the outputs "
                "themselves.",
                self._definition.where("loss"),
            )

    def _clear_gradients(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None

    @functools.cached_property
    def _input_at(self) -> Origin:
        """Place of the input function; looked up once, because each batch needs it."""
        return self._definition.where("input")

    def _tensors(self, features: Arrays) -> Any:
        return batch_tensors(
            features,
            self._device,
            self._input_at,
            keeps_float64=self._takes_float64,
        )

    def _batch_tensors(self, batch: Batch) -> Tensors:
        return Tensors(
            self._tensors(batch.features),
            self._label_tensors(batch.labels),
            self._label_tensors(batch.weights),
            batch.num_examples,
        )

    def _label_tensors(self, labels: Arrays) -> Any:
        return batch_tensors(
            labels,
            self._device,
            self._input_at,
            keeps_float64=self._returns_float64,
            are_labels=True,
            classes=self._definition.classes,
        )

    @contextmanager
    def _drawing(self, rank: int, *moment: int) -> Iterator[None]:
        """Context manager that seeds all random numbers in its block by (seed, step, rank, moment).

        Args:
            rank: The rank of a worker, or `_EVERY_RANK` for numbers that are equal on all workers.
            moment: Further numbers, which distinguish several blocks in one step.
        """
        seed = derive_seed(self._seed, self.step, rank, *moment)
        self._generators.seed(seed)
        with self._generators.used(), seeded(seed, self._device):
            yield

    @contextmanager
    def _no_side_effects(self, *moment: int) -> Iterator[dict[str, torch.Tensor]]:
        """Context manager: evaluation mode, no gradients; restores the model's buffers at its end.

        Args:
            moment: Numbers that, with the seed, step and rank, determine the random numbers drawn.

        Yields:
            Copies of the buffers, by name, from before the block.
        """
        self._modes.eval()
        with torch.no_grad(), self._buffers.restored() as before, self._drawing(self.rank, *moment):
            yield before

    @contextmanager
    def _naming_errors(self, what: str, batch: Batch) -> Iterator[None]:
        """Context manager that turns exceptions of user code into errors that name batch and line.

        Args:
            what: The operation in the block, such as `train`, for the error message.
            batch: The batch.

        Raises:
            DataError: A label or an id of the batch is out of range.
            TrainingError: The GPU has too little memory.
            UserCodeError: User code raised for another reason.
        """
        try:
            # Metrics may draw random numbers too.
            with self._generators.used():
                yield
        except ElasticDLError:
            raise
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"{self._definition.origin}: {str(error).splitlines()[0]} Use a smaller "
                "--minibatch_size."
            ) from error
        except Exception as error:
            mistake = failures.out_of_range(
                error,
                self.model,
                lambda: self._outputs_again(batch),
                shape=self._outputs_shape,
                batch=batch,
                definition=self._definition,
            )
            if mistake is not None:
                raise mistake from error
            labels = "" if batch.labels is None else f", labels {describe(batch.labels)}"
            of_labels = failures.label_advice(
                error,
                batch.labels,
                self._outputs_shape,
                is_default=self._definition.has_default_input,
            )
            raise UserCodeError(
                f"{failures.place_of(error, self._definition)}: the model, its loss or its metrics "
                f"raised in {phase(what)} on {describe(batch.features)}{labels}:\n"
                f"{users_traceback(error)}{failures.device_advice(error)}"
                f"{of_labels}{failures.loss_advice(error)}"
            ) from error

    def _outputs_again(self, batch: Batch) -> Any:
        with self._no_side_effects():
            return self._steps.outputs(self.model, self._tensors(batch.features))

    # --- creation -------------------------------------------------------------------------

    def _create_model(self) -> nn.Module:
        model = self._definition.create_model()
        if not isinstance(model, nn.Module):
            raise DefinitionError(
                f"{self._definition.where('model')}: the model is a {type(model).__module__}."
                f"{type(model).__name__}; expected a torch.nn.Module."
            )
        check_has_modes(model, self._definition.where("model"))
        check_has_values(model, self._definition.where("model"))
        own_steps = self._definition.loss_within == "training_step"
        if own_steps:
            take_metrics(model, str(self._definition.where("model")))
        check_class(model, self._definition.where("model"), own_steps=own_steps)
        if isinstance(self._definition.loss, nn.Module):
            # It may have tensors, such as class weights.
            self._definition.loss.to(self._device)
        return model.to(self._device)

    def _create_steps(self, example: Batch) -> Steps:
        definition, precision = self._definition, self._precision
        self._loss = loss = TorchLoss(definition)
        if definition.loss_within == "training_step":
            progress = TrainerProgress(
                definition.origin, lambda: self.step, lambda: self.hooks.epoch
            )
            return LightningSteps(definition, loss, precision, self._no_side_effects, progress)
        if definition.loss_within == "forward":
            check_takes_labels(self.model, definition.where("model"))
        adapt = self._find_adapter(example)
        if definition.loss_within == "forward":
            return InnerLossSteps(definition, adapt, loss, precision, self._no_side_effects)
        return ForwardSteps(definition, adapt, loss, precision)

    def _find_adapter(self, example: Batch) -> Adapter:
        """Find how to pass features to `forward`, by running a copy of the model on the example.

        A copy is used because a model may initialize itself from the first batch that it receives,
        which must be a batch of the training. If the run creates parameters (of lazy modules, or
        of layers created in `forward`), the model itself is run too, to create them there.
        """
        draws = torch.get_rng_state()

        def run(model: nn.Module, batch: Batch) -> None:
            self._generators.seed(self._seed)
            torch.set_rng_state(draws)
            self._adapter_of(model, batch)

        missing = missing_buffers(self.model)
        self._computed_from_data = computed_from_data(self.model, example, run)
        torch.set_rng_state(draws)
        if found := [name for name in missing if name in self._computed_from_data]:
            raise DefinitionError(
                f"{self._definition.where('model')}: the buffer {found[0]} of the model is None "
                "until `forward` computes it from the first batch that it receives, which is not "
                "the first batch of the training here. Register it with its shape, and a flag that "
                f'marks it as set, and change both in training only: self.register_buffer("'
                f'{found[0].rpartition(".")[2]}", torch.zeros(...)); '
                'self.register_buffer("is_set", torch.tensor(False)).'
            )
        tried = trial_copy(self.model)
        adapter = self._adapter_of(tried, example)
        # An average of the model has a copy of every buffer.
        names = functools.partial(
            tensor_names, all_buffers=self._definition.create_average is not None
        )
        if names(tried) != names(self.model):
            torch.set_rng_state(draws)
            adapter = self._adapter_of(self.model, example)
        return adapter

    def _adapter_of(self, model: nn.Module, example: Batch) -> Adapter:
        """Find how to pass the example's features to a model; record dtypes and output shape.

        A model that accepts float64 features receives them, as it would in a plain script.
        """
        model.eval()
        tried: list[Adapter] = []

        def run(adapter: Adapter) -> None:
            tried.append(adapter)
            args, kwargs = adapter(self._tensors(example.features))
            with torch.no_grad(), Buffers(model).restored(), warnings.catch_warnings():
                if model is not self.model:
                    # A warning may concern the copy only.
                    warnings.simplefilter("ignore")
                outputs = model(*args, **kwargs)
            self._outputs_shape = outputs.shape if isinstance(outputs, torch.Tensor) else None
            tensors = [
                t for t in leaves(as_plain_containers(outputs)) if isinstance(t, torch.Tensor)
            ]
            self._returns_float64 = any(t.dtype == torch.float64 for t in tensors)

        where = self._definition.where("model")
        is_default = self._definition.has_default_input
        if any(array.dtype == np.float64 for array in leaves(example.features)):
            self._takes_float64 = True
            with suppress(DefinitionError):
                return find_adapter(model, example.features, where, run, is_default=is_default)
        self._takes_float64 = False
        try:
            return find_adapter(model, example.features, where, run, is_default=is_default)
        except DefinitionError as error:
            if not isinstance(cause := error.__cause__, Exception):
                raise
            mistake = failures.out_of_range(
                cause,
                model,
                lambda: run(tried[0]),
                shape=None,
                batch=example,
                definition=self._definition,
            )
            if mistake is None:
                raise
            raise mistake from cause

    def _find_dtypes(self, example: Batch) -> None:
        """Find whether the steps of a LightningModule accept float64, by running them on a copy.

        Those that do receive it, as from Lightning's Trainer. `_adapter_of` does so for others.
        """
        if not isinstance(self._steps, LightningSteps):
            return
        features, labels = (
            any(array.dtype == np.float64 for array in leaves(arrays))
            for arrays in (example.features, example.labels)
        )
        for found in ((features, labels), (features, False), (False, False)):
            self._takes_float64, self._returns_float64 = found
            if not any(found):
                return
            with suppress(Exception), self._generators.used(), self._no_side_effects():
                batch, tried = self._batch_tensors(example), trial_copy(self.model)
                try:
                    with torch.enable_grad():
                        loss = self._steps.training(tried, batch).loss
                        if loss is not None and loss.value.requires_grad:
                            loss.value.backward()  # type: ignore[no-untyped-call]
                except Exception:
                    # Data to predict have no labels.
                    if example.labels is not None:
                        raise
                    self._steps.outputs(tried, batch.features)
                finally:
                    self._clear_gradients()
                return

    def _find_label_shapes(self, example: Batch, minibatch_size: int) -> None:
        """Run the model on the example to find which shape of labels the loss and metrics need."""
        if not (isinstance(example.labels, np.ndarray) and is_number_per_example(example.labels)):
            return
        batch = self._batch_tensors(_pair(example, (0, example.num_examples - 1)))
        # An error of the model is raised again by its first batch, which names it.
        with self._no_side_effects(), self._precision.autocast(), suppress(Exception):
            tried = trial_copy(self.model).eval()
            outputs = self._steps.find_label_shape(tried, batch)
            if outputs is not None:
                self.training_metrics.find_label_shapes(outputs, batch.labels)
                self.evaluation_metrics.find_label_shapes(outputs, batch.labels)
        if self._loss.reshapes_labels:
            # With labels of the other shape, it may have raised before.
            self._check_loss(example, minibatch_size)

    def _check_nothing_outside(self, example: Batch, minibatch_size: int) -> None:
        for one, other in _trials(example, minibatch_size):
            self._unchecked = self._check_model(
                self._batch_tensors(one), self._batch_tensors(other)
            )
            if not self._unchecked:
                break
        self._check_loss(example, minibatch_size)

    def _check_model(self, batch: Tensors, others: Tensors) -> str:
        def run(model: nn.Module, batch: Tensors = batch, moment: int = 0) -> object:
            with self._drawing(self.rank, moment):
                outputs = self._steps.touch(model, copy.deepcopy(batch))
            if activation := last_activation(outputs):
                # The shape is that of the outputs for one example.
                self._last_activation = activation, tuple(outputs.shape[1:])
            return outputs

        def run_others(model: nn.Module) -> object:
            # With other random numbers, as in another step.
            return run(model, others, 1)

        return check_no_untracked_state(
            self.model, run, run_others, self._definition.where("model")
        )

    def _check_loss(self, example: Batch, minibatch_size: int) -> None:
        loss = self._definition.loss
        if loss is None or example.labels is None:
            return
        tried = trial_copy(self.model).eval()

        def compute(batch: Tensors) -> object:
            with self._no_side_effects():
                outputs = self._steps.outputs(tried, batch.features)
                with torch.enable_grad(), self._precision.autocast():
                    # A loss may change its arguments in place.
                    labels = copied(batch.labels)
                    return self._loss.of(outputs, labels, None, batch.num_examples).value

        for one, _ in _trials(example, minibatch_size):
            once = functools.partial(compute, self._batch_tensors(one))
            if check_loss(once, loss, self._definition.where("loss")):
                break

    def _find_logged(self, example: Batch) -> None:
        """Register the metrics that a LightningModule logs, by running its steps on the example.

        Until then their names are unknown, but a resumed run needs them to interpret stored states.
        """
        if not isinstance(self._steps, LightningSteps):
            return
        for step, metrics in (
            (self._steps.training, self.training_metrics),
            (self._steps.evaluation, self.evaluation_metrics),
        ):
            # An exception here is raised again by the step itself, which names the batch.
            with suppress(Exception), self._generators.used(), self._no_side_effects():
                stepped = step(self.model, self._batch_tensors(example))
                metrics.logged(stepped.logged)
        self._schedulers.by_step = self._steps.by_step

    def _tensors_kept(self) -> dict[str, torch.Tensor]:
        return {**self._parameters, **self._buffers.tensors()}


def _rows(arrays: Arrays, examples: Sequence[int]) -> Arrays:
    """Return nested arrays of some examples, from those of a batch.

    Args:
        arrays: Features, labels or sample weights of the batch.
        examples: Positions of the examples; they may repeat.
    """
    return map_arrays(lambda a: a[list(examples)], arrays)


def _pair(batch: Batch, examples: Sequence[int] = (0, 0)) -> Batch:
    """Return a batch of two (or more) examples of a batch, for trial runs of the model.

    Args:
        batch: The batch.
        examples: Positions of the examples; they may repeat.
    """
    features, labels, weights = (
        _rows(arrays, examples) for arrays in (batch.features, batch.labels, batch.weights)
    )
    return dataclasses.replace(
        batch, features=features, labels=labels, weights=weights, num_examples=len(examples)
    )


def _trials(example: Batch, minibatch_size: int) -> Iterator[tuple[Batch, Batch]]:
    """Yield two batches of the same shapes for trial runs: pairs, then whole minibatches.

    Most models accept a pair of equal examples, which is fast; some need as many as in a minibatch.

    Args:
        example: A batch of at least one example.
        minibatch_size: Number of examples in a minibatch.
    """
    last = example.num_examples - 1
    yield _pair(example), _pair(example, (last, last))
    if minibatch_size > 2:  # noqa: PLR2004
        for_both = ((0, last), (0, last, last))
        one, other = (
            _pair(example, list(itertools.islice(itertools.cycle(each), minibatch_size)))
            for each in for_both
        )
        yield one, other


def _dense(parameter: nn.Parameter) -> torch.Tensor:
    """Return a parameter's gradient as a dense float32 tensor; zeros if it has none."""
    if parameter.grad is None:
        return torch.zeros_like(parameter, dtype=torch.float32)
    dense = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
    return dense.float()


def _loss_state(
    values: Sequence[float], divisors: Sequence[float]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the metric state of the loss of some batches: a sum of losses, and its divisor.

    Args:
        values: Mean loss of each batch.
        divisors: The number by which each batch's sum of losses was divided to get its mean. A
            batch with divisor 0 adds nothing.
    """
    # If no target counts, the mean is NaN and the sum is 0.
    total = sum(value * by for value, by in zip(values, divisors, strict=True) if by)
    return np.asarray(float(total)), np.asarray(sum(divisors))


def _result(steps: Sequence[_Step]) -> StepResult:
    losses = to_array(torch.stack([step.loss.value for step in steps]))
    # A loss that a LightningModule logs is reported instead of the one that it returns.
    divisors = [0.0 if "loss" in step.metrics else float(step.loss.divisor) for step in steps]
    total, count = _loss_state(losses.tolist(), divisors)
    means = dict(summed([step.metrics for step in steps]))
    if "loss" in means:
        logged, num_logged = means.pop("loss")
        total, count = total + logged, count + num_logged
    states = added([step.states for step in steps])
    return StepResult(losses, {"loss": (total, count), **means, **states})


def _below(prefix: str, state: State) -> dict[str, np.ndarray[Any, Any]]:
    return {
        path.removeprefix(prefix): array for path, array in state.items() if path.startswith(prefix)
    }


def _shape_of(value: Any) -> str:
    if value is None:
        return "missing"
    # The array in a checkpoint has `float32`, and the model's tensor `torch.float32`.
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
