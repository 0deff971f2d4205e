"""One step of a PyTorch module; see `training/trainer.py` for the laws.

A step is the one of every PyTorch loop: forward, loss, backward, `optimizer.step()`. What makes
it lawful is around it: the random generator is seeded for the step and put back afterwards,
buffers are restored where nothing may stay, and a `Contribution` has the same layout on every
worker, whichever parameters its batch reached:

    | gradient sums | weighted changes of buffers | for each parameter, how many reached it |

The last part counts the examples of batches that gave a parameter a gradient: one that none did
is left alone, as it is where its `.grad` is None.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from elasticdl.data.batch import Arrays, Batch, describe, map_arrays
from elasticdl.definition import Mode, ModelDefinition
from elasticdl.errors import (
    CorruptCheckpointError,
    DefinitionError,
    ElasticDLError,
    TrainingError,
    UserCodeError,
    users_traceback,
)
from elasticdl.sharding.permutation import derive_seed
from elasticdl.training.torch import export
from elasticdl.training.torch.buffers import Buffers
from elasticdl.training.torch.determinism import be_deterministic, seeded
from elasticdl.training.torch.hooks import TorchHooks
from elasticdl.training.torch.inputs import Adapter, find_adapter
from elasticdl.training.torch.metrics import TorchMetrics, summed
from elasticdl.training.torch.optimizer import OptimizerState, gradient_for
from elasticdl.training.torch.tensors import batch_tensors, to_array, to_tensor
from elasticdl.training.trainer import (
    Contribution,
    Examined,
    MetricStates,
    State,
    StepResult,
    Weights,
)

# An update is the same on every worker, whatever its slot: if it draws, it draws as this one.
_EVERY_SLOT = -1


class TorchTrainer:
    """Trains one PyTorch module; see `trainer.Trainer`.

    Args:
        definition: What to train; its `create_optimizer` returns what makes an optimizer of a
            list of parameters.
        example: A batch like those to come; only its shapes and dtypes matter.
        minibatch_size: Examples in a full batch; nothing here depends on it.
        seed: Decides the initial weights and, with step and slot, all randomness of steps.
        slot: Which worker this is.
        deterministic: Whether kernels must give the same bits each time, where PyTorch has such.

    Attributes:
        step: Number of updates made so far.
        slot: Which worker this is; may be set between steps.
        model: The user's module.
        optimizer: The user's optimizer.

    Raises:
        DefinitionError: The model does not fit the batch, or something is not of PyTorch.
        UserCodeError: A function of the user's raised while model or optimizer was made.
    """

    def __init__(
        self,
        definition: ModelDefinition,
        example: Batch,
        *,
        minibatch_size: int,
        seed: int = 0,
        slot: int = 0,
        deterministic: bool = True,
    ) -> None:
        del minibatch_size
        if deterministic:
            be_deterministic()
        self.step = 0
        self.slot = slot
        self._definition = definition
        self._seed = seed
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - users call np.random.*
        with seeded(seed % 2**63, self._device):
            self.model = self._create_model()
            self._adapt = self._find_adapter(example)
            self._parameters: dict[str, nn.Parameter] = dict(self.model.named_parameters())
            self._buffers = Buffers(self.model)
            self._optimizer = OptimizerState(definition, self._parameters)
        self.optimizer = self._optimizer.optimizer
        self._trainable = [p for p in self._parameters.values() if p.requires_grad]
        self._check_real()
        where = str(definition.origin)
        self.training_metrics = TorchMetrics(definition.create_metrics(Mode.TRAINING), where=where)
        self.evaluation_metrics = TorchMetrics(
            definition.create_metrics(Mode.EVALUATION), where=where
        )
        if definition.create_callbacks():
            raise DefinitionError(
                f"{definition.origin}: callbacks are Keras's; a PyTorch model cannot have any. "
                "Remove them, or return an empty list."
            )
        self.hooks = TorchHooks()
        # Two of them: torch.export takes a size of one for a constant.
        self._example = map_arrays(lambda a: np.concatenate([a[:1], a[:1]]), example.features)
        self._loss_is_a_mean = False
        self._anchors: dict[str, torch.Tensor] = {}
        self._pull = 0.0

    # --- the seven methods -------------------------------------------------------------

    def train_steps(
        self, batches: Sequence[Batch], so_far: MetricStates | None = None
    ) -> StepResult:
        """See `trainer.Trainer`."""
        del so_far
        steps = []
        for batch in batches:
            with self._telling("train", batch):
                steps.append(self._forward_backward(batch))
                self._update()
        return _result(steps, batches[0].num_examples)

    def gradients(
        self, batch: Batch, so_far: MetricStates | None = None
    ) -> tuple[Contribution, StepResult]:
        """See `trainer.Trainer`."""
        del so_far
        with self._telling("gradients", batch):
            if not self._loss_is_a_mean:
                self._check_loss_is_a_mean(batch)
            with self._buffers.restored() as before:
                means = self._forward_backward(batch)
                parts = [_dense(p) for p in self._trainable] + self._buffers.changes(before)
            reached = torch.tensor([float(p.grad is not None) for p in self._trainable])
            parts.append(reached.to(self._device))
            self._clear_gradients()
        buffer = torch.cat([part.reshape(-1) for part in parts]).mul_(batch.num_examples)
        return (
            Contribution(buffer.cpu().numpy(), batch.num_examples),
            _result([means], batch.num_examples),
        )

    def apply(self, total: Contribution) -> None:
        """See `trainer.Trainer`."""
        if total.num_examples == 0:
            return
        buffers = list(self._buffers.tensors().values())
        sizes = [tensor.numel() for tensor in (*self._trainable, *buffers)]
        mean = total.buffer / np.float32(total.num_examples)
        num_trainable = len(self._trainable)
        parts = torch.split(torch.from_numpy(mean).to(self._device), [*sizes, num_trainable])
        reached = mean[mean.size - num_trainable :] > 0
        for parameter, part, is_reached in zip(self._trainable, parts, reached, strict=False):
            gradient = part.view_as(parameter).to(parameter.dtype)
            parameter.grad = gradient_for(self.optimizer, gradient) if is_reached else None
        self._buffers.add(parts[num_trainable:-1])
        self._update()

    def require_sums(self, why: str) -> None:
        """See `trainer.Trainer`: all metrics are sums here."""

    def evaluate(self, batch: Batch, so_far: MetricStates | None = None) -> MetricStates:
        """See `trainer.Trainer`."""
        del so_far
        with self._telling("evaluate", batch), self._looking():
            features, labels = self._tensors(batch.features), self._tensors(batch.labels)
            outputs = self._forward(features)
            means = self.evaluation_metrics.means(outputs, labels)
            if self._definition.loss is not None and labels is not None:
                means = {"loss": self._loss(outputs, labels), **means}
        return summed([means], batch.num_examples)

    def predict(self, features: Arrays) -> Arrays:
        """See `trainer.Trainer`."""
        with self._telling("predict", Batch(features, None, 0)), self._looking():
            return map_arrays(_to_rows, self._forward(self._tensors(features)))

    def examine(self, batch: Batch, so_far: MetricStates | None = None) -> Examined:
        """See `trainer.Examiner`."""
        del so_far
        with self._telling("evaluate", batch), self._looking():
            features, labels = self._tensors(batch.features), self._tensors(batch.labels)
            outputs = self._forward(features)
            means = self.evaluation_metrics.means(outputs, labels)
            values = self.evaluation_metrics.values(outputs, labels)
            if self._definition.loss is not None and labels is not None:
                means = {"loss": self._loss(outputs, labels), **means}
                alone = [self._loss(*_row((outputs, labels), i)) for i in range(batch.num_examples)]
                values = {"loss": torch.stack(alone), **values}
        return Examined(
            summed([means], batch.num_examples),
            map_arrays(_to_rows, outputs),
            {name: to_array(column.double()) for name, column in values.items()},
        )

    def state(self) -> State:
        """See `trainer.Trainer`; the optimizer's part grows as parameters get their gradients."""
        state = {f"model/{name}": to_array(tensor) for name, tensor in self._tensors_kept().items()}
        state |= {f"optimizer/{path}": a for path, a in self._optimizer.state().items()}
        state["step"] = np.array(self.step, np.int64)
        return state

    def load_state(self, state: State) -> None:
        """See `trainer.Trainer`."""
        tensors = self._tensors_kept()
        arrays, slots = _below("model/", state), _below("optimizer/", state)
        problems = [
            f"model/{name}: {_shape_of(arrays.get(name))} in the checkpoint, "
            f"{_shape_of(tensors.get(name))} in the model"
            for name in sorted({*tensors, *arrays})
            if name not in tensors
            or name not in arrays
            or tuple(tensors[name].shape) != arrays[name].shape
        ]
        with seeded(0, self._device):
            problems = problems or [
                f"optimizer/{problem}" for problem in self._optimizer.load(slots)
            ]
        if problems:
            raise CorruptCheckpointError(
                "The checkpoint is not of this model:\n  "
                + "\n  ".join(problems[:5])
                + ("\n  ..." if len(problems) > 5 else "")  # noqa: PLR2004
                + "\n  Was the model file changed since? Use another --output for the new model."
            )
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(to_tensor(arrays[name]))
        self.step = int(state["step"])

    def export(self, folder: Any) -> list[str]:
        """Write what serving needs into a folder; returns the names written."""
        return export.export(self.model, self._adapt(self._tensors(self._example)), folder)

    def pull_towards(self, weights: Weights | None, strength: float) -> None:
        """See `trainer.Pulled`."""
        self._pull = strength
        self._anchors = {
            name: to_tensor(weights[name]).to(parameter)
            for name, parameter in self._parameters.items()
            if weights is not None and parameter.requires_grad
        }

    def by_name(self, contribution: Contribution) -> tuple[Weights, Weights]:
        """See `trainer.Differentiator`."""
        trainable = {name: p for name, p in self._parameters.items() if p.requires_grad}
        mean = contribution.buffer / np.float32(contribution.num_examples)
        reached = mean[mean.size - len(trainable) :] > 0
        tensors = {**trainable, **self._buffers.tensors()}
        found: dict[str, np.ndarray[Any, Any]] = {}
        first = 0
        for name, tensor in tensors.items():
            found[name] = mean[first : first + tensor.numel()].reshape(tuple(tensor.shape))
            first += tensor.numel()
        return (
            {
                name: found[name]
                for name, is_reached in zip(trainable, reached, strict=True)
                if is_reached
            },
            {name: array for name, array in found.items() if name not in trainable},
        )

    # --- a step ---------------------------------------------------------------------------

    def _add_pull(self) -> None:
        for name, anchor in self._anchors.items():
            parameter = self._parameters[name]
            term = self._pull * (parameter.detach() - anchor)
            parameter.grad = term if parameter.grad is None else parameter.grad + term

    def _forward_backward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Leave the gradients of the batch's mean loss; return it and the other means."""
        if not self.model.training:
            self.model.train()
        self._clear_gradients()
        features, labels = self._tensors(batch.features), self._tensors(batch.labels)
        with self._drawing(self.slot):
            outputs = self._forward(features)
            loss = self._loss(outputs, labels)
            loss.backward()  # type: ignore[no-untyped-call]
            self._add_pull()
        with torch.no_grad():
            means = self.training_metrics.means(map_arrays(_detached, outputs), labels)
        return {"loss": loss.detach(), **means}

    def _update(self) -> None:
        with self._drawing(_EVERY_SLOT):
            self._optimizer.step()
        self._clear_gradients()
        self.step += 1

    def _forward(self, features: Any) -> Any:
        args, kwargs = self._adapt(features)
        return self.model(*args, **kwargs)

    def _loss(self, outputs: Any, labels: Any) -> torch.Tensor:
        if self._definition.loss is None:
            raise DefinitionError(f"{self._definition.origin}: there is no loss to train with.")
        loss = self._definition.loss(outputs, labels)
        if not isinstance(loss, torch.Tensor):
            raise DefinitionError(
                f"{self._definition.origin}: the loss is a {type(loss).__name__}; expected a "
                "tensor: the batch's mean, or one value an example."
            )
        return loss.float().mean()

    def _clear_gradients(self) -> None:
        for parameter in self._trainable:
            parameter.grad = None

    def _tensors(self, arrays: Arrays) -> Any:
        return batch_tensors(arrays, self._device, self._definition.origin)

    @contextmanager
    def _drawing(self, slot: int) -> Iterator[None]:
        """Make all that PyTorch draws meanwhile a function of (seed, step, slot)."""
        with seeded(derive_seed(self._seed, self.step, slot), self._device):
            yield

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Run the model for looking only: nothing it does to its buffers stays."""
        if self.model.training:
            self.model.eval()
        with torch.no_grad(), self._buffers.restored(), self._drawing(self.slot):
            yield

    @contextmanager
    def _telling(self, what: str, batch: Batch) -> Iterator[None]:
        """Turn what user code raises into an error that names the batch and their lines."""
        try:
            yield
        except ElasticDLError:
            raise
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"{self._definition.origin}: {str(error).splitlines()[0]} Take a smaller "
                "--minibatch_size."
            ) from error
        except Exception as error:
            labels = "" if batch.labels is None else f", labels {describe(batch.labels)}"
            raise UserCodeError(
                f"{self._definition.origin}: the model, its loss or its metrics raised in "
                f"{what!r} on {describe(batch.features)}{labels}:\n{users_traceback(error)}"
            ) from error

    # --- making it ------------------------------------------------------------------------

    def _create_model(self) -> nn.Module:
        model = self._definition.create_model()
        if not isinstance(model, nn.Module):
            raise DefinitionError(
                f"{self._definition.origin}: the model is a {type(model).__module__}."
                f"{type(model).__name__}; expected a torch.nn.Module."
            )
        if isinstance(self._definition.loss, nn.Module):
            # It may have tensors of its own: the weights of classes.
            self._definition.loss.to(self._device)
        return model.to(self._device)

    def _find_adapter(self, example: Batch) -> Adapter:
        """Run the model once: lazy modules learn their shapes, and what does not fit is told."""
        features = self._tensors(example.features)
        self.model.eval()

        def run(adapter: Adapter) -> None:
            args, kwargs = adapter(features)
            with torch.no_grad(), Buffers(self.model).restored():
                self.model(*args, **kwargs)

        return find_adapter(self.model, example.features, self._definition.origin, run)

    def _check_real(self) -> None:
        complex_ones = [name for name, t in self._tensors_kept().items() if t.is_complex()]
        if complex_ones:
            raise DefinitionError(
                f"{self._definition.origin}: {', '.join(complex_ones)} hold complex numbers, "
                "which a sum over workers has no place for. Keep them as pairs of real ones "
                "(torch.view_as_real)."
            )

    def _check_loss_is_a_mean(self, batch: Batch) -> None:
        """Compare a batch with its duplicate: the mean stays, a sum doubles."""
        with self._looking():
            labels = self._tensors(batch.labels)
            outputs = self._forward(self._tensors(batch.features))
            twice = map_arrays(lambda t: torch.cat([t, t]) if t.ndim else t, (outputs, labels))
            once, doubled = float(self._loss(outputs, labels)), float(self._loss(*twice))
        if not math.isclose(once, doubled, rel_tol=1e-3, abs_tol=1e-6) and math.isfinite(once):
            raise DefinitionError(
                f"{self._definition.origin}: the loss of a batch is {once:.6g}, and "
                f"{doubled:.6g} of the same examples twice. Sums over workers need a loss that "
                "is a mean over the batch: take reduction='mean' instead of 'sum'."
            )
        self._loss_is_a_mean = True

    def _tensors_kept(self) -> dict[str, torch.Tensor]:
        return {**self._parameters, **self._buffers.tensors()}


def _dense(parameter: nn.Parameter) -> torch.Tensor:
    """Return a parameter's gradient as float32, zeros where it has none."""
    if parameter.grad is None:
        return torch.zeros_like(parameter, dtype=torch.float32)
    dense = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
    return dense.float()


def _detached(output: Any) -> Any:
    return output.detach() if isinstance(output, torch.Tensor) else output


def _row(tree: Any, row: int) -> Any:
    """Return a batch of one example."""
    return map_arrays(lambda tensor: tensor[row : row + 1], tree)


def _to_rows(output: torch.Tensor) -> np.ndarray[Any, Any]:
    # Nobody who reads predictions has a word for bfloat16.
    return to_array(output.float() if output.dtype == torch.bfloat16 else output)


def _result(steps: Sequence[Mapping[str, torch.Tensor]], num_examples: int) -> StepResult:
    losses = torch.stack([means["loss"] for means in steps])
    return StepResult(to_array(losses), summed(steps, num_examples))


def _below(prefix: str, state: State) -> dict[str, np.ndarray[Any, Any]]:
    return {
        path.removeprefix(prefix): array for path, array in state.items() if path.startswith(prefix)
    }


def _shape_of(value: Any) -> str:
    return "missing" if value is None else f"{value.dtype}{list(value.shape)}"
