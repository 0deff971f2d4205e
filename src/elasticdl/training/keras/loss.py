"""Computes the loss of a batch, as the model file, `compile` or `compute_loss` defines it.

    loss              labels                    masks, sample weights    losses added by layers
    of a model file   as given                  applied here             added here
    of `compile`      (labels, sample weights)  by Keras                 by Keras
    `compute_loss`    as given                  by the model             by the model

The loss scale of mixed precision is applied in `trainer.py`.

Callers: `trainer.py`.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import keras
import tensorflow as tf

from elasticdl.data.wording import listed
from elasticdl.definition import WeighableLoss, resolved
from elasticdl.errors import DefinitionError
from elasticdl.training.keras import compiled, loss_part_checks, overrides, per_example, reduction
from elasticdl.training.keras.label_shapes import KerasLabelShape
from elasticdl.training.keras.labels import as_numpy, unwrap
from elasticdl.training.keras.loss_dtypes import LossDtypes
from elasticdl.training.keras.output_part_checks import ModelRunner
from elasticdl.training.keras.statistics import means_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasticdl.definition import ModelDefinition
    from elasticdl.training.keras.loss_part_checks import ExampleBatch
    from elasticdl.training.keras.reduction import Divisor

    Forward: TypeAlias = Callable[[ExampleBatch, int, bool], tuple[Any, Sequence[float]]]
    """Takes a trial, a seed, and whether in training; returns outputs, losses added by layers."""

_log = logging.getLogger("elasticdl")


class TrainingLoss:
    """The loss that one model is trained to minimize.

    Args:
        model: The model, with its optimizer.
        definition: Its definition.
        adapt: Function (features) -> argument of the model.

    Attributes:
        of_the_model: Whether the model overrides `compute_loss`.
    """

    def __init__(
        self, model: keras.Model, definition: ModelDefinition, adapt: Callable[[Any], Any]
    ) -> None:
        self._model, self._definition, self._adapt = model, definition, adapt
        self._randomness_is_noted = False
        self._dtypes = LossDtypes(labels_as_numpy=definition.labels_as_numpy)
        self._label_shape = KerasLabelShape(
            str(definition.where("loss")),
            "the loss",
            labels_as_numpy=definition.labels_as_numpy,
            is_default=definition.has_default_input,
            as_in_fit=True,
        )
        self.of_the_model = overrides.own(model, overrides.COMPUTE_LOSS) is not None
        if self.of_the_model and not definition.compiled:
            compiled.give_loss(model, self.without_added)
        elif not definition.compiled and len(self.objects()) == 1:
            # Callbacks may read it there, as after `compile`.
            (model.loss,) = self.objects()

    @property
    def is_defined(self) -> bool:
        """Whether the model file, `compile` or the model's `compute_loss` defines a loss."""
        definition = self._definition
        return definition.compiled or definition.loss is not None or self.of_the_model

    @property
    def is_by_example(self) -> bool:
        """Whether the loss of each example can be computed separately.

        The value is False if the loss comes from the user's call of `model.compile`, or from the
        model's own `compute_loss`: these return one value per batch. True otherwise: the model
        file's loss function can be called for each example.
        """
        return not self._definition.compiled and not self.of_the_model

    def __call__(
        self, features: Any, outputs: Any, labels: Any, weights: Any, *, training: bool
    ) -> tf.Tensor:
        """Return the loss of a batch, a float32 scalar.

        Args:
            features: Features of the batch, as tensors.
            outputs: The model's outputs for them.
            labels: Labels of the batch; for a compiled model, with the sample weights.
            weights: Sample weights, or None.
            training: Whether it is for a training step.
        """
        loss_part_checks.check_averages(self._members(), self._definition.where("loss"))
        if self._definition.compiled:
            self._warn_if_spread(outputs, labels)
            found = compiled.loss(self._model, features, outputs, labels, training=training)
            return tf.cast(found, tf.float32)
        if self.of_the_model:
            x = self._adapt(features)
            own = compiled.own_loss(self._model, x, labels, outputs, weights, training=training)
            return tf.cast(own, tf.float32)
        return self._with_added(self.without_added(outputs, labels, weights))

    def without_added(self, outputs: Any, labels: Any, weights: Any) -> tf.Tensor:
        """Return the mean of the user's loss over a batch, without losses added by layers.

        Args:
            outputs: The model's outputs, with their masks.
            labels: Labels of the batch.
            weights: Sample weights, or None.

        Raises:
            DefinitionError: The model file defines no loss, or weights cannot be applied to it.
        """
        if self._definition.loss is None:
            raise DefinitionError(f"{self._definition.origin}: there is no loss to train with.")
        loss = resolved(self._definition.loss)
        if isinstance(loss, WeighableLoss):
            labels = self._label_shape.fitted(
                lambda outputs, labels: loss.weighted(outputs, labels, None), outputs, labels
            )
            try:
                # It looks for masks itself. If it does not reduce its values, they are averaged.
                return tf.reduce_mean(tf.cast(loss.weighted(outputs, labels, weights), tf.float32))
            except (TypeError, ValueError) as error:
                if tf.is_tensor(outputs) or not overrides.is_of_keras(loss.loss):
                    raise
                raise self._of_several(loss.loss, outputs, labels) from error
        values = tf.cast(self._values(loss, outputs, labels), tf.float32)
        mask = reduction.mask_of(outputs)
        return reduction.batch_loss(values, mask, weights, self._definition.where("loss"))

    def by_example(self, outputs: Any, labels: Any, weights: Any, *, eager: bool) -> tf.Tensor:
        """Return the loss of each example, computed as a batch of one: float32 [examples].

        Args:
            outputs: The model's outputs for the batch, with their masks.
            labels: Labels of the batch.
            weights: Sample weights, or None.
            eager: Whether steps run uncompiled.
        """
        masks = reduction.masks_of(outputs)
        # None cannot be mapped over examples.
        beside = {str(i): mask for i, mask in enumerate(masks) if mask is not None}
        if weights is not None:
            beside["weights"] = weights

        def one(outputs: Any, labels: Any, beside: Any) -> tf.Tensor:
            given = [beside.get(str(i)) for i in range(len(masks))]
            # It is the loss of a batch of one, so it includes penalties on weights, as the mean
            # does.
            masked = reduction.with_masks(outputs, given)
            return self._with_added(self.without_added(masked, labels, beside.get("weights")))

        return per_example.one_by_one(one, outputs, labels, beside, eager=eager)

    def averaged_parts(self, trial: ExampleBatch, loss: tf.Tensor, divisor: Divisor) -> tf.Tensor:
        """Return the average loss of a batch's parts, as several workers would compute it.

        The trainer compares it with the loss of the whole batch. If the loss is certain to be a
        mean, nothing is computed and `loss` is returned. Runs within a compiled step.

        Args:
            trial: The batch, with its outputs.
            loss: Loss of the whole batch.
            divisor: Kind of the number by which the loss divides its sum over a batch.
        """
        if self._is_known(trial.outputs, trial.labels):
            return loss
        return loss_part_checks.averaged_parts(
            lambda part: self(
                part.features, part.outputs, part.labels, part.weights, training=True
            ),
            trial,
            divisor,
            weights_in_labels=self._definition.compiled,
        )

    def find_divisor(self, trial: ExampleBatch, forward: Forward, num_added: int) -> Divisor | None:
        """Determine the divisor of the loss: the number by which it divides its sum over a batch.

        Args:
            trial: The first batch; its `outputs` are not used.
            forward: Function that runs the model on a batch; see `Forward`.
            num_added: Number of losses that layers add in training.

        Returns:
            The number of examples, the number of unmasked time steps, or the sum of the sample
            weights; None if the loss is not finite.

        Raises:
            DefinitionError: The loss, or a loss added by layers, cannot be split into parts.
        """
        origin = self._definition.where("loss")
        if self.is_defined and not self.of_the_model:
            loss_part_checks.check_ignores_nothing(self._members(), origin)
        in_labels = self._definition.compiled
        trial = replace(trial, outputs=forward(trial, 0, False)[0])
        kind = loss_part_checks.find_divisor(
            self._loss_of, trial, origin, weights_in_labels=in_labels
        )
        if kind is not None:
            self.check_added(trial, forward, kind, num_added)
        return kind

    def model_runner(
        self,
        forward: Callable[[ExampleBatch, int, bool], Any],
        divisor: Divisor,
        normalizes_by_batch: Callable[[ExampleBatch], bool],
        moves_statistics: Callable[[ExampleBatch], bool],
    ) -> ModelRunner:
        """Return the functions that `output_part_checks.check` calls on parts of a batch.

        Args:
            forward: Function (examples, seed, whether in training) -> outputs; see `ModelRunner`.
            divisor: Kind of the number by which the loss divides its sum over a batch.
            normalizes_by_batch: Function (examples) -> whether running them in inference mode
                changes statistics of a BatchNormalization.
            moves_statistics: Function (examples) -> whether running them in training mode changes a
                statistic.
        """
        in_labels = self._definition.compiled

        def divisor_of(trial: ExampleBatch) -> float:
            weights = trial.labels[1] if in_labels else trial.weights
            size = float(trial.num_examples)
            return float(reduction.divisor(divisor, trial.outputs, weights, size))

        return ModelRunner(
            forward, self._loss_of, divisor_of, normalizes_by_batch, moves_statistics
        )

    def check_added(
        self, trial: ExampleBatch, forward: Forward, divisor: Divisor, num_added: int
    ) -> None:
        """Check that losses added by layers are means over the batch.

        The check is repeated in later batches, because such a loss may be zero at first, as with a
        weight that warms up.

        Args:
            trial: The batch; its `outputs` are not used.
            forward: Function that runs the model on a batch; see `Forward`.
            divisor: Kind of the number by which the loss divides its sum over a batch.
            num_added: Number of losses that layers add in training. If it is 0, the model is not
                run.

        Raises:
            DefinitionError: An added loss is not a mean.
        """
        if not num_added:
            return
        # Losses that are added in training only are computed in training mode.
        outputs, losses = forward(trial, 0, False)
        training = len(losses) != num_added
        differs = bool(means_of(self._model))
        origin = self._definition.where("loss")
        in_labels = self._definition.compiled
        weights = trial.labels[1] if in_labels else trial.weights
        given = replace(trial, outputs=outputs, weights=weights)

        def added(part: ExampleBatch, step: int) -> tuple[Any, float]:
            outputs, losses = forward(part, step, training)
            return outputs, sum(losses)

        reason = loss_part_checks.check_added(
            added,
            given,
            divisor,
            origin,
            in_training=training,
            differs_in_parts=differs,
        )
        if reason is not None and not self._randomness_is_noted:
            self._randomness_is_noted = True
            _log.warning(
                "%s: cannot determine whether the loss that layers add is a mean over examples, "
                "because %s. Workers treat it as a mean.",
                origin,
                reason,
            )

    def _loss_of(self, trial: ExampleBatch) -> float:
        """Return the loss of some examples as a number, to compare it with that of other examples.

        Losses added by layers are included only where Keras or the model computes the loss, and not
        for a loss function of the model file (`is_by_example`). 0 if no loss is defined.
        """
        if not self.is_defined:
            return 0.0
        if self.is_by_example:
            return float(self.without_added(trial.outputs, trial.labels, trial.weights))
        given = (trial.features, trial.outputs, trial.labels, trial.weights)
        return float(self(*given, training=True))

    def _is_known(self, outputs: Any, labels: Any) -> bool:
        """Return whether the loss is certain to be a mean, so that checking one batch is enough.

        Another loss may divide by the sum of a mask or of weights, which shows only in batches
        where these are not all equal.
        """
        if not self.is_by_example:
            return not self.of_the_model and all(
                isinstance(loss, str) or overrides.is_of_keras(loss) for loss in self._members()
            )
        if self._definition.loss is None:
            return True
        loss = resolved(self._definition.loss)
        if isinstance(loss, WeighableLoss):
            return all(overrides.is_of_keras(each) for each in self._members())
        return bool(self._values(loss, outputs, labels).shape.rank)

    def objects(self) -> Sequence[Any]:
        """Return the losses that the user's file defines: objects or functions, not names."""
        loss = None if self._definition.loss is None else resolved(self._definition.loss)
        if isinstance(loss, WeighableLoss) or self._definition.compiled:
            return [each for each in self._members() if not isinstance(each, str)]
        return [] if loss is None else [loss]

    def _members(self) -> Sequence[Any]:
        """Return the losses that Keras calls: objects, functions or, for a compiled model, names.

        These are all that were passed to `compile`, or the model file's loss if it is a Keras loss.
        """
        if self._definition.compiled:
            return [each for each in keras.tree.flatten(self._model.loss) if each is not None]
        loss = None if self._definition.loss is None else resolved(self._definition.loss)
        return [loss.loss] if isinstance(loss, WeighableLoss) else []

    def _of_several(self, loss: Any, outputs: Any, labels: Any) -> DefinitionError:
        """Return the error for a loss of Keras that fails on a dict or a list of outputs."""
        keys = list(outputs if isinstance(outputs, dict) else range(len(outputs)))
        if isinstance(labels, dict):
            keys = [key for key in keys if key in labels] or keys
        of_labels = "labels" if tf.is_tensor(labels) else "labels[{key!r}]"
        terms = " + ".join(f"one({of_labels.format(key=key)}, outputs[{key!r}])" for key in keys)
        returned = (
            f"a dict ({listed(list(outputs))})"
            if isinstance(outputs, dict)
            else f"{len(outputs)} outputs"
        )
        is_object = isinstance(loss, keras.losses.Loss)
        one = f"{type(loss).__name__}(...)" if is_object else getattr(loss, "__name__", str(loss))
        return DefinitionError(
            f"{self._definition.where('loss')}: a loss of Keras compares one output with one array "
            f"of labels, and the model returns {returned}. Write a function that adds the losses: "
            f"one = keras.losses.{one}{', with its arguments,' if is_object else ''} and "
            f"def loss(labels, outputs): return {terms}"
        )

    def _warn_if_spread(self, outputs: Any, labels: Any) -> None:
        """Warn if the only loss of `compile` compares each label with several outputs."""
        members, tensors = self._members(), keras.tree.flatten(labels[0])
        if len(members) == len(tensors) == 1:
            self._label_shape.warn_if_spread(
                lambda outputs, labels: keras.losses.get(members[0])(labels, outputs),
                outputs,
                tensors[0],
            )

    def _values(self, loss: Callable[[Any, Any], Any], outputs: Any, labels: Any) -> Any:
        """Call the user's loss function with labels and outputs in the dtype and shape it needs."""
        outputs, labels = self._dtypes.cast(loss, outputs, labels)
        labels = self._label_shape.fitted(loss, outputs, labels)
        given = as_numpy(labels) if self._definition.labels_as_numpy else labels
        return unwrap(loss(outputs, given))

    def _with_added(self, loss: tf.Tensor) -> tf.Tensor:
        for extra in self._model.losses:
            # A layer may add one value per example.
            loss += tf.reduce_sum(tf.cast(extra, tf.float32))
        return loss
