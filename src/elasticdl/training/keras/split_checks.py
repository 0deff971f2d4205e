"""Checks that a batch's loss follows from its parts, before workers sum the gradients of parts.

    the divisor       the number by which the loss divides the sum over a batch (`loss.py`)
    the outputs       those for an example do not depend on the others (`output_part_checks.py`)
    trained weights   a call sets them to the same values on all workers (`moved_weights.py`)
    padding           does not decide the loss (`training/padding_check.py`)

The first batches are checked, and some later ones (`training/repeated_checks.py`).

Callers: `trainer.py`, in `gradients`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import tensorflow as tf

from elasticdl.data.batch import Batch, leaves, map_arrays
from elasticdl.training.complex_numbers import ALONE, refuse_complex
from elasticdl.training.keras import failures, moved_weights, optimizers, output_part_checks
from elasticdl.training.keras.loss_part_checks import ExampleBatch
from elasticdl.training.keras.reduction import Divisor
from elasticdl.training.keras.step_functions import parts
from elasticdl.training.padding_check import MeasuredLoss, PaddingCheck
from elasticdl.training.repeated_checks import LIKE_BATCH_NORM, RepeatedChecks

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition
    from elasticdl.training.keras.loss import TrainingLoss
    from elasticdl.training.keras.model_calls import ModelCalls
    from elasticdl.training.keras.random_ops import RandomOpReplacer
    from elasticdl.training.keras.step_functions import StepFunctions

_CHECKS_OF_OUTPUTS = 2

_log = logging.getLogger("elasticdl")


class SplitChecks:
    """Checks the batches of one worker.

    Args:
        definition: What is trained.
        calls: Calls the model.
        loss: The loss.
        functions: The compiled functions; the checks run uncompiled.
        draws: Replaces random operations of TensorFlow in the model.
        drawing: Function (name) -> context manager that seeds what Python code draws in its block.
        is_due: Function (checks) -> whether to repeat these checks before the next batch.
        add_moved: Function (trained weights that a call has set, is_again=whether contributions
            were already sent) that lets workers send the changes of these weights.

    Attributes:
        divisor: What the loss of a batch is divided by; known after the first `check`.
    """

    def __init__(
        self,
        definition: ModelDefinition,
        calls: ModelCalls,
        loss: TrainingLoss,
        functions: StepFunctions,
        draws: RandomOpReplacer,
        *,
        drawing: Callable[[str], contextlib.AbstractContextManager[None]],
        is_due: Callable[[RepeatedChecks], bool],
        add_moved: AddMoved,
    ) -> None:
        self._definition, self._calls, self._loss = definition, calls, loss
        self._functions, self._draws, self._drawing = functions, draws, drawing
        self._is_due, self._add_moved = is_due, add_moved
        self.divisor = Divisor.EXAMPLES
        self._loss_was_split, self._num_output_checks = False, 0
        # Numbers of examples of the largest update so far, and for which one copies were compared.
        self._update_size, self._compared_size = 0, 0
        self._repeated = RepeatedChecks(definition.origin)
        self._padding = PaddingCheck(
            definition.where("loss"),
            "with Keras, a mask (Embedding(mask_zero=True), Masking), or sample weights of 0 for "
            'padding and reduction="mean_with_sample_weight"',
        )
        self._has_reported_normalization = False
        self._single: ExampleBatch | None = None

    def done(self) -> dict[str, Any]:
        """Return the checks that were made, as a JSON value; for `take_over` of another worker."""
        return {
            "num_batches": self._num_output_checks,
            "update_size": self._update_size,
            "compared_size": self._compared_size,
            "parts": self._repeated.state(),
        }

    def take_over(self, done: Mapping[str, Any]) -> None:
        """Skip the checks that `done` of another worker lists."""
        self._num_output_checks = done["num_batches"]
        self._update_size, self._compared_size = done["update_size"], done["compared_size"]
        self._repeated.load_state(done["parts"])

    def updated(self, num_examples: int) -> None:
        """Record the number of examples of an update."""
        self._update_size = max(self._update_size, num_examples)

    def check(self, batch: Batch, step: int) -> None:
        """Check that the loss of a batch follows from its parts, which workers compute.

        Also determines the divisor: the number that the loss divides the sum over a batch by. A
        worker's first batch repeats two records, which may be alike, so the outputs for its second
        batch are checked too. Some later batches are checked again (`RepeatedChecks`), mainly for
        losses that layers add; most calls do nothing.

        Args:
            batch: The batch.
            step: Number of the present step.

        Raises:
            DefinitionError: The loss or the outputs for an example depend on the other examples.
        """
        is_again = self._loss_was_split
        is_larger = self._update_size > max(self._compared_size, batch.num_examples)
        is_early = self._num_output_checks < _CHECKS_OF_OUTPUTS or is_larger
        is_due = self._is_due(self._repeated)
        if is_again and not is_early and not is_due:
            return

        def forward(trial: ExampleBatch, seed: int, training: bool) -> tuple[Any, Sequence[float]]:
            at = tf.constant([seed, 0], tf.int64)
            outputs = self._calls.without_trace(trial.features, at, training=training)
            return outputs, [float(tf.reduce_sum(extra)) for extra in self._calls.model.losses]

        def alone(trial: ExampleBatch, seed: int, training: bool) -> Any:
            with self._calls.unmoved():
                return forward(trial, seed, training)[0]

        definition = self._definition
        optimizers.check_gradients_add_up(self._calls.trained, definition.where("model"))
        variables = (*self._calls.trained, *self._calls.statistics)
        complex_ones = [v.path for v in variables if tf.as_dtype(v.dtype).is_complex]
        refuse_complex(complex_ones, definition.where("model"), ALONE)
        features, labels, weights = map_arrays(tf.convert_to_tensor, list(parts(batch)))
        trial = ExampleBatch(features, None, labels, weights, batch.num_examples)
        if trial.num_examples == 1 and is_early:
            # A single example cannot be split, so it is joined with the previous one.
            pair = None if self._single is None else output_part_checks.joined(self._single, trial)
            self._single, trial = trial, pair or trial
        predict, nums_added = self._functions.predict_uncompiled, list[int]()
        with (
            failures.naming("the model or its loss", batch, definition, predict),
            self._functions.uncompiled(),
            self._draws.replaced(),
            self._drawing("split"),
            self._calls.restored(),
        ):
            with self._functions.rejecting_attribute_changes():
                moved = moved_weights.check_alike(
                    lambda part, rank: nums_added.append(
                        self._calls.in_training(part.features, step, rank)
                    ),
                    trial,
                    self._calls.trained,
                    self._calls.statistics,
                    definition.where("model"),
                    is_early=is_early,
                )
            self._add_moved(moved, is_again=is_again)
            if is_again:
                kind: Divisor | None = self.divisor
                self._loss.check_added(trial, forward, self.divisor, nums_added[0])
            else:
                kind = self._loss.find_divisor(trial, forward, nums_added[0])
            if kind is not None:
                self._num_output_checks += trial.num_examples > 1
                runner = self._loss.model_runner(
                    alone,
                    kind,
                    lambda part: self._calls.normalizes_by_batch(part.features),
                    lambda part: self._calls.moves_statistics(part.features),
                )
                with contextlib.nullcontext() if is_early else self._repeated.reported(step):
                    normalizes = output_part_checks.check(
                        runner,
                        trial,
                        self._calls.model,
                        definition.where("model"),
                        definition.where("loss"),
                        is_early=is_early,
                    )
                    if normalizes and not self._has_reported_normalization:
                        self._has_reported_normalization = True
                        _log.warning(LIKE_BATCH_NORM, definition.where("model"))
                    if self._update_size > self._compared_size:
                        self._compared_size = self._update_size
                        output_part_checks.check_crowded(
                            runner,
                            trial,
                            self._update_size,
                            self._calls.model,
                            definition.where("model"),
                        )
        if kind is not None:
            self.divisor, self._loss_was_split = kind, True

    def check_padding(self, batch: Batch) -> None:
        """Warn if padding decides what the update of a batch is; most calls do nothing."""
        self._padding.check(batch, self._update_size, self._measured)

    def _measured(self, batch: Batch) -> MeasuredLoss:
        """Return the loss and the outputs of a batch in inference mode, without side effects.

        The padding check calls this with differently padded batches.
        """
        features, labels, weights = map_arrays(tf.convert_to_tensor, list(parts(batch)))
        trial = ExampleBatch(features, None, labels, weights, batch.num_examples)

        def forward(trial: ExampleBatch, seed: int, training: bool) -> Any:
            at = tf.constant([seed, 0], tf.int64)
            return self._calls.without_trace(trial.features, at, training=training)

        runner = self._loss.model_runner(forward, self.divisor, lambda _: False, lambda _: False)
        with (
            self._functions.uncompiled(),
            self._draws.replaced(),
            self._drawing("split"),
            self._calls.restored(),
        ):
            made, again = (replace(trial, outputs=forward(trial, seed, False)) for seed in range(2))
            loss, divisor = runner.loss_of(made), runner.divisor_of(made)
            is_random = loss != runner.loss_of(again)
        rounding = output_part_checks.rounding_of(self._calls.model)
        return MeasuredLoss(
            loss,
            divisor,
            [tuple(output.shape[1:]) for output in leaves(made.outputs)],
            # A tenth of what deep models may amplify in single outputs.
            rounding / 10,
            is_random,
            output_part_checks.rows_of(made),
            rounding,
        )


class AddMoved(Protocol):
    """Adds trained weights to the variables whose changes are sent; see `SplitChecks`."""

    def __call__(self, moved: Sequence[Any], *, is_again: bool) -> None: ...  # noqa: D102
