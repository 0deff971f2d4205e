"""One step of a Keras 3 model on TensorFlow; see `training/trainer.py` for the laws.

All steps of full minibatches run through one compiled function that loops over a group of
batches, a group of one included. So a step's bits do not depend on how steps are grouped,
and a group pays for one call. Batches of another size (the last of an epoch) go through a
second function whose batch axis is open.
"""

from __future__ import annotations

import contextlib
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from elasticdl.data.batch import Arrays, Batch, describe, leaves, map_arrays, stack
from elasticdl.definition import Mode, ModelDefinition, WeighableLoss, made
from elasticdl.errors import (
    CorruptCheckpointError,
    DataError,
    DefinitionError,
    ElasticDLError,
    TrainingError,
    UserCodeError,
    raised_at,
    users_traceback,
)
from elasticdl.sharding.permutation import derive_seed
from elasticdl.training import generators
from elasticdl.training.divisors import check_divides_by_examples
from elasticdl.training.keras import (
    compiled,
    evaluation,
    examples,
    failures,
    inputs,
    overrides,
    reduction,
    splitting,
)
from elasticdl.training.keras import export as exporting
from elasticdl.training.keras.attributes import Attributes
from elasticdl.training.keras.compiled import CompiledMetrics
from elasticdl.training.keras.draws import Draws
from elasticdl.training.keras.hooks import KerasHooks
from elasticdl.training.keras.labels import NotANumpyFunctionError, as_numpy, unwrap
from elasticdl.training.keras.lengths import Axes, Functions, Lengths, signature
from elasticdl.training.keras.metrics import KerasMetrics, tracked_metrics
from elasticdl.training.keras.outside import Outside
from elasticdl.training.keras.python_code import PythonCode
from elasticdl.training.keras.reduction import Divisor
from elasticdl.training.keras.splitting import Trial
from elasticdl.training.keras.statistics import Statistics, change_of, means_of
from elasticdl.training.trainer import (
    Contribution,
    Examined,
    MetricStates,
    State,
    StepResult,
    Weights,
)

_log = logging.getLogger("elasticdl")
_SEED_VARIABLE = "seed_generator_state"
# Examples that tell whether a metric's states add up.
_MAX_PROBED = 16
# Rounding, whatever the precision: code that relies on lengths is off by more.
_LOOSELY = 1e-2
_WEIGHTS_SHAPE = (
    "\n  As in Keras, sample weights have the shape of the loss or axes of 1: one a pixel, or (n, "
    "1, 1), where the loss is one value a pixel."
)


class KerasTrainer:
    """Trains one Keras model; see `trainer.Trainer`.

    Args:
        definition: What to train.
        example: A batch like those to come; only its shapes and dtypes matter.
        minibatch_size: Examples in a full batch.
        seed: Decides the initial weights and, with step and slot, all randomness of steps.
        slot: Which worker this is.
        deterministic: Whether kernels must give the same bits each time. Costs speed only
            where TensorFlow has a faster kernel that does not.

    Raises:
        DefinitionError: The model does not fit the batch.
        UserCodeError: A function of the user's raised while the model was made.
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
        if deterministic:
            tf.config.experimental.enable_op_determinism()
        self.step = 0
        self.slot = slot
        self._definition = definition
        self._minibatch_size = minibatch_size
        self._seed = seed % 2**31
        generators.install()
        self._generators = generators.Generators()
        self._python_code = PythonCode(definition.origin)
        # It seeds the generators of NumPy and Python that are in use, and TensorFlow's.
        with self._generators.used():
            keras.utils.set_random_seed(seed % 2**32)
            _restart_names()
            self._create(example)

    def _create(self, example: Batch) -> None:
        definition = self._definition
        self.model: keras.Model = definition.create_model()
        self._is_eager_only = bool(getattr(self.model, "run_eagerly", False))
        steps_per_execution = int(getattr(self.model, "steps_per_execution", 1))
        overrides.check(self.model, definition.origin, is_compiled=definition.compiled)
        if definition.compiled:
            compiled.check(self.model, definition.origin)
        # What tf_keras loaded has looked for its random operations by itself.
        self._is_keras = not hasattr(self.model, "inner")
        self._draws = Draws(definition.origin, is_strict=self._is_keras)
        self._adapt = inputs.build(self.model, example.features, definition.where("model"))
        self._weights = overrides.TrainedWeights(self.model, definition.origin)
        self._trainable = self._weights.trained
        self._seed_variables = [v for v in self._weights.others if v.path.endswith(_SEED_VARIABLE)]
        seed_ids = {id(v) for v in self._seed_variables}
        self._seed_variables.append(self._draws.state)
        self._statistics = [v for v in self._weights.others if id(v) not in seed_ids]
        self._changes = Statistics(self._statistics, means_of(self.model), definition.origin)
        self.optimizer = self._create_optimizer()
        self._computes_loss = overrides.own(self.model, overrides.COMPUTE_LOSS) is not None
        if self._computes_loss and not definition.compiled:
            compiled.give_loss(self.model, self._loss_alone)
        self.training_metrics = self._create_metrics(Mode.TRAINING, example)
        self.evaluation_metrics = self._create_metrics(Mode.EVALUATION, example)
        for metrics in (self.training_metrics, self.evaluation_metrics):
            self._probe_on_example(example, metrics)
        self.hooks = KerasHooks(
            self.model,
            definition.create_callbacks(),
            str(definition.where("callbacks")),
            self.evaluation_metrics.direction,
            is_compiled=definition.compiled,
            drawing=self._at_moment,
        )
        if steps_per_execution > 1:
            self.hooks.check_grouping(steps_per_execution)
        self._attributes = Attributes(self.model, self.optimizer, definition.origin)
        self._outside = Outside(self.model, self._all_variables, definition.origin)
        self._with_gradient: list[int] | None = None
        # What parameters are pulled to, and how strongly: variables, so that a compiled step
        # serves all rounds.
        self._anchors: list[tf.Variable] = []
        self._pull: tf.Variable | None = None
        self._is_pulled = False
        self._compiled = Functions()
        self._lengths = Lengths(*_parts(example))
        self._few = map_arrays(lambda array: array[:2], example.features)
        self._opens: bool | None = None
        self._eager = False
        # What the loss of a batch is divided by; known once the first gradients were asked for.
        self._divisor = Divisor.EXAMPLES
        self._loss_was_split = False
        self._looked_outside = False
        self._is_evaluation_checked = False

    # --- the seven methods -------------------------------------------------------------

    def train_steps(
        self, batches: Sequence[Batch], so_far: MetricStates | None = None
    ) -> StepResult:
        """See `trainer.Trainer`."""
        self.training_metrics.variables.resume(so_far)
        group = (
            stack([batch.features for batch in batches]),
            stack([batch.labels for batch in batches]),
            stack([batch.weights for batch in batches]),
        )
        full = batches[0].num_examples == self._minibatch_size
        losses, metrics = self._call(
            "train",
            self._train_group,
            group,
            self.step,
            batches=batches,
            fixed_axis=1 if full else None,
        )
        self._look_outside_at_first()
        self.step += len(batches)
        states = {**_to_numpy(metrics), **self.training_metrics.variables.carried()}
        return StepResult(losses.numpy(), states)

    def gradients(
        self, batch: Batch, so_far: MetricStates | None = None
    ) -> tuple[Contribution, StepResult]:
        """See `trainer.Trainer`."""
        if not self._loss_was_split:
            self._split_loss(batch)
        variables = self.training_metrics.variables

        def computed() -> Any:
            variables.resume(so_far)
            buffer, *rest = self._call(
                "gradients", self._gradients, _parts(batch), self.step, batches=[batch]
            )
            return buffer.numpy(), *rest

        buffer, loss, averaged, metrics = computed()
        if self._changes.must_be_classified(self._block(buffer)):
            self._classify_statistics(batch)
            buffer, loss, averaged, metrics = computed()
        splitting.check_parts(
            float(loss), float(averaged), batch.num_examples, self._definition.where("loss")
        )
        self._look_outside_at_first()
        self._changes.check_finite(self._block(buffer))
        states = {**_to_numpy(metrics), **variables.carried()}
        self._probe_if_unproved(batch, self.training_metrics)
        return (
            Contribution(buffer, batch.num_examples),
            StepResult(loss.numpy()[np.newaxis], states),
        )

    def apply(self, total: Contribution) -> None:
        """See `trainer.Trainer`."""
        if total.num_examples == 0:
            return
        if self._with_gradient is None:
            raise RuntimeError("apply() before the first gradients(): the layout is not known.")
        specs = (tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32))
        apply = self._compiled.get("apply", lambda: self._compile(self._apply, specs))
        try:
            apply(tf.convert_to_tensor(total.buffer), tf.constant(total.num_examples, tf.float32))
        except tf.errors.OpError:
            self._python_code.check()
            raise
        self._changes.add_whole_numbers(self._block(total.buffer))
        self.step += 1

    def rehearse(self, contribution: Contribution) -> None:
        """See `trainer.Rehearser`: apply it and take it back, with what it taught of statistics.

        An example is made of few records again and again, so all of its parts are alike.
        """
        before = self.state()
        self.apply(contribution)
        self.load_state(before)
        self._changes.forget()

    def evaluate(self, batch: Batch, so_far: MetricStates | None = None) -> MetricStates:
        """See `trainer.Trainer`."""
        self.check_evaluation(batch)
        variables = self.evaluation_metrics.variables
        variables.resume(so_far)
        found = self._call("evaluate", self._evaluate, _parts(batch), self.step, batches=[batch])
        states = {**_to_numpy(found), **variables.carried()}
        self._probe_if_unproved(batch, self.evaluation_metrics)
        return states

    def require_sums(self, why: str) -> None:
        """See `trainer.Trainer`."""
        for metrics in (self.training_metrics, self.evaluation_metrics):
            if metrics.ordered:
                # A step that is compiled already leaves their states to be carried.
                self._compiled.clear()
            metrics.variables.require_sums(why)

    def predict(self, features: Arrays) -> Arrays:
        """See `trainer.Trainer`."""
        self.check_evaluation(Batch(features, None, 0))
        return self._predicted(features)

    def check_evaluation(self, batch: Batch) -> None:
        """See `trainer.EvaluationProbe`."""
        if self._is_evaluation_checked:
            return
        features, labels, weights = map_arrays(tf.convert_to_tensor, list(_parts(batch)))

        def call() -> None:
            self._set_seeds(tf.constant([self.step, self.slot], tf.int64))
            outputs = self.model(self._adapt(features), training=False)
            if self._has_loss and labels is not None:
                self._loss(features, outputs, labels, weights, training=False)

        changed: list[Any] = []
        # What raises here raises again in the evaluation, which names the batch.
        with contextlib.suppress(Exception), self._draws.replaced(), self._drawing_at("evaluation"):
            changed = evaluation.changed_by(call, [*self._trainable, *self._statistics])
            self._is_evaluation_checked = not changed
        evaluation.check_unchanged(self.model, changed, self._definition.origin)
        self._is_evaluation_checked |= bool(changed)

    def _predicted(self, features: Arrays) -> Arrays:
        batch = Batch(features, None, 0)
        outputs = self._call("predict", self._predict, _parts(batch), self.step, batches=[batch])
        return map_arrays(lambda tensor: tensor.numpy(), outputs)

    def examine(self, batch: Batch, so_far: MetricStates | None = None) -> Examined:
        """See `trainer.Examiner`."""
        self.check_evaluation(batch)
        variables = self.evaluation_metrics.variables
        variables.resume(so_far)
        states, outputs, values = self._call(
            "examine", self._examine, _parts(batch), self.step, batches=[batch]
        )
        return Examined(
            {**_to_numpy(states), **variables.carried()},
            map_arrays(np.asarray, outputs),
            {name: np.asarray(column, np.float64) for name, column in values.items()},
        )

    def finish(self) -> None:
        """See `trainer.Trainer`; as `fit` does, an optimizer's averages become the weights."""
        self.optimizer.finalize_variable_values(self._trainable)

    @property
    def keeps_averages(self) -> bool:
        """See `trainer.Trainer`."""
        return any(each.use_ema for each in _plain_optimizers(self.optimizer))

    def state(self) -> State:
        """See `trainer.Trainer`; the seeds of dropout are no state, the step decides them."""
        self._outside.check_unmoved()
        state = {path: np.array(variable.numpy()) for path, variable in self._variables().items()}
        state["step"] = np.array(self.step, np.int64)
        return state

    def load_state(self, state: State) -> None:
        """See `trainer.Trainer`."""
        variables = self._variables()
        problems = [
            f"{path}: {_shape_of(state.get(path))} in the checkpoint, "
            f"{_shape_of(variables.get(path))} in the model"
            for path in sorted({*variables, *state} - {"step"})
            if path not in variables
            or path not in state
            or tuple(variables[path].shape) != state[path].shape
        ]
        if problems:
            raise CorruptCheckpointError(
                "The checkpoint is not of this model:\n  "
                + "\n  ".join(problems[:5])
                + ("\n  ..." if len(problems) > 5 else "")  # noqa: PLR2004
                + "\n  Was the model file changed since? Use another --output for the new model."
            )
        for path, variable in variables.items():
            variable.assign(state[path])
        self.step = int(state["step"])

    def export(self, folder: Any) -> list[str]:
        """Write what serving needs into a folder; returns the names written."""
        with self._without_trace():
            return exporting.export(self.model, folder, self._export_example())

    def why_not_exported(self) -> Mapping[str, str]:
        """See `trainer.ExportProbe`."""
        if exporting.is_of_keras_only(self.model):
            # Nothing to find out: to try a large model would take as long as some steps.
            return {}
        with self._without_trace():
            return exporting.why_not_exported(self.model, self._export_example())

    def _export_example(self) -> exporting.Example:
        with self._uncompiled():
            outputs = self._predicted(self._few)
        inputs = self._adapt(self._few)
        # What the model takes may be a part of the features: then nothing is known of its axes.
        is_all = len(leaves(inputs)) == len(leaves(self._few))
        return exporting.Example(inputs, outputs, self._lengths.seen if is_all else ())

    @contextlib.contextmanager
    def _without_trace(self) -> Iterator[None]:
        """Put back what a layer moves that is fixed to `training=True`."""
        before = [(v, v.numpy()) for v in (*self._statistics, *self._seed_variables)]
        try:
            with self._drawing_at("export"):
                yield
        finally:
            for variable, value in before:
                variable.assign(value)

    def pull_towards(self, weights: Weights | None, strength: float) -> None:
        """See `trainer.Pulled`."""
        self._is_pulled = weights is not None
        if weights is None:
            return
        if self._pull is None:
            self._anchors = [tf.Variable(v.value, trainable=False) for v in self._trainable]
            self._pull = tf.Variable(0.0, trainable=False)
        paths = {id(v): path for path, v in self._variables().items()}
        for variable, anchor in zip(self._trainable, self._anchors, strict=True):
            anchor.assign(weights[paths[id(variable)].removeprefix("model/")])
        self._pull.assign(strength)

    def by_name(self, contribution: Contribution) -> tuple[Weights, Weights]:
        """See `trainer.Differentiator`."""
        paths = {id(v): path.removeprefix("model/") for path, v in self._variables().items()}
        divisor, sums = contribution.buffer[0], contribution.buffer[1:]
        check_divides_by_examples(
            float(divisor), contribution.num_examples, self._definition.where("loss")
        )
        mean = sums / divisor
        gradients: dict[str, np.ndarray[Any, Any]] = {}
        first = 0
        for variable in [self._trainable[i] for i in self._with_gradient or []]:
            size = int(np.prod(variable.shape))
            gradients[paths[id(variable)]] = mean[first : first + size].reshape(variable.shape)
            first += size
        changes = self._changes.mean_changes(self._block(contribution.buffer))
        statistics = [paths[id(v)] for v in self._statistics]
        return gradients, dict(zip(statistics, changes, strict=True))

    # --- the steps, as TensorFlow sees them ---------------------------------------------

    def _train_group(self, features: Any, labels: Any, weights: Any, at: tf.Tensor) -> Any:
        """Make one update for each entry of the first axis."""
        num_steps = tf.shape(leaves(features)[0])[0]

        def batch(i: Any) -> tuple[Any, Any, Any, tf.Tensor]:
            def pick(array: tf.Tensor) -> tf.Tensor:
                return array[i]

            def part(arrays: Any) -> Any:
                return () if arrays is None else map_arrays(pick, arrays)

            offset = tf.stack([tf.cast(i, tf.int64), tf.constant(0, tf.int64)])
            return part(features), part(labels), part(weights), at + offset

        def one(features: Any, labels: Any, weights: Any, at: tf.Tensor) -> Any:
            return self._train_one(features, _or_none(labels), _or_none(weights), at)

        if self._eager:
            results = [one(*batch(i)) for i in range(int(num_steps))]
            total: Any = results[0][1]
            for _, metrics in results[1:]:
                total = tf.nest.map_structure(tf.add, total, metrics)
            return tf.stack([loss for loss, _ in results]), total
        # What the metrics are is only known from a trace. It is called as well: a step is traced
        # once.
        step = tf.function(one, autograph=False).get_concrete_function(*batch(0))
        zeros = tf.nest.map_structure(
            lambda spec: tf.zeros(spec.shape, spec.dtype), step.structured_outputs[1]
        )

        def body(i: tf.Tensor, losses: tf.TensorArray, total: Any) -> Any:
            loss, metrics = step(*batch(i))
            return i + 1, losses.write(i, loss), tf.nest.map_structure(tf.add, total, metrics)

        _, losses, total = tf.while_loop(
            lambda i, *_: i < num_steps,
            body,
            (tf.constant(0), tf.TensorArray(tf.float32, size=num_steps), zeros),
            parallel_iterations=1,
        )
        return losses.stack(), total

    def _train_one(
        self, features: Any, labels: Any, weights: Any, at: tf.Tensor
    ) -> tuple[Any, dict[str, Any]]:
        self.training_metrics.variables.begin()
        outputs, loss, gradients = self._forward_backward(features, labels, weights, at)
        self._update(gradients)
        num_examples = tf.cast(tf.shape(leaves(features)[0])[0], tf.float32)
        states = self.training_metrics.states(loss, outputs, labels, num_examples, weights)
        # How many steps make a group hangs on the time they take: no bit of a sum may.
        return loss, tf.nest.map_structure(_as_addend, states)

    def _gradients(self, features: Any, labels: Any, weights: Any, at: tf.Tensor) -> Any:
        before = self._changes.copies()
        self.training_metrics.variables.begin()
        outputs, loss, gradients = self._forward_backward(features, labels, weights, at)
        num_examples = tf.cast(tf.shape(leaves(features)[0])[0], tf.float32)
        given = labels[1] if self._definition.compiled else weights
        divisor = reduction.divisor(self._divisor, outputs, given, num_examples)
        self._with_gradient = [i for i, g in enumerate(gradients) if g is not None]
        self._warn_of_repeated_rows(gradients)
        # Unscaled: others may have another scale by the time they hear of it, and an overflow
        # is infinity or NaN here as well.
        scale = self._loss_scale()
        parts = [
            tf.reshape(tf.cast(tf.convert_to_tensor(gradients[i]), tf.float32) / scale, [-1])
            for i in self._with_gradient
        ]
        sums = tf.concat(parts, 0) * divisor
        changes = self._changes.take_changes(before, num_examples)
        flat = tf.concat([tf.reshape(divisor, [1]), sums, changes], 0)
        averaged = loss
        if not self._loss_is_known(outputs, labels):
            trial = Trial(features, outputs, labels, weights, num_examples)
            averaged = splitting.averaged_parts(
                lambda part: self._loss(
                    part.features, part.outputs, part.labels, part.weights, training=True
                ),
                trial,
                self._divisor,
                weights_in_labels=self._definition.compiled,
            )
        states = self.training_metrics.states(loss, outputs, labels, num_examples, weights)
        return flat, loss, averaged, states

    def _loss_is_known(self, outputs: Any, labels: Any) -> bool:
        """Whether the loss is certain to be a mean, so that one batch tells for all.

        Any other may divide by a mask or by weights that are all equal in most batches.
        """
        if self._definition.compiled or self._computes_loss:
            return not self._computes_loss and all(
                isinstance(loss, str) or overrides.is_of_keras(loss) for loss in self._losses()
            )
        if self._definition.loss is None:
            return True
        loss = made(self._definition.loss)
        if isinstance(loss, WeighableLoss):
            return all(overrides.is_of_keras(each) for each in self._losses())
        theirs = as_numpy(labels) if self._definition.labels_as_numpy else labels
        return bool(unwrap(loss(outputs, theirs)).shape.rank)

    def _losses(self) -> list[Any]:
        """Return the losses of Keras, or the functions, that the loss is made of."""
        if self._definition.compiled:
            return [each for each in keras.tree.flatten(self.model.loss) if each is not None]
        loss = None if self._definition.loss is None else made(self._definition.loss)
        return [loss.loss] if isinstance(loss, WeighableLoss) else []

    def _apply(self, buffer: tf.Tensor, num_examples: tf.Tensor) -> None:
        del num_examples
        targets = [self._trainable[i] for i in self._with_gradient or []]
        sizes = [int(np.prod(v.shape)) for v in targets]
        divisor, *parts, block = tf.split(buffer, [1, *sizes, self._changes.size])
        # The optimizer unscales and looks for an overflow in the sum: all workers find the same.
        scale = self._loss_scale()
        gradients: list[Any] = [None] * len(self._trainable)
        for i, part in zip(self._with_gradient or [], parts, strict=True):
            # Where no step of any example counts, there is nothing to divide.
            mean = tf.math.divide_no_nan(part, divisor)
            gradient = tf.reshape(mean * scale, self._trainable[i].shape)
            gradients[i] = tf.cast(gradient, self._trainable[i].dtype)
        self._update(gradients)
        self._changes.add_means_and_sums(block)

    def _update(self, gradients: Sequence[Any]) -> None:
        """Make one update by the method that `fit` calls, which a user's optimizer may override."""
        if self._trainable:
            self.optimizer.apply_gradients(zip(gradients, self._trainable, strict=True))

    def _loss_scale(self) -> tf.Tensor:
        """Return by how much the optimizer wants the loss scaled: 1 where it does not care."""
        return tf.cast(self.optimizer.scale_loss(tf.constant(1.0)), tf.float32)

    def _warn_of_repeated_rows(self, gradients: Sequence[Any]) -> None:
        """Log where the sum over workers is another gradient than that of one process.

        In one process an embedding's gradient is a list of rows, and Keras squares rows of the same
        id one by one: a^2 + b^2. A sum over workers is dense, and its square is (a + b)^2, as it is
        for Keras on JAX and PyTorch.
        """
        paths = [
            variable.path
            for variable, gradient in zip(self._trainable, gradients, strict=True)
            if isinstance(gradient, tf.IndexedSlices)
        ]
        if paths and not all(_is_linear(each) for each in _plain_optimizers(self.optimizer)):
            _log.warning(
                "%s: %s: %s squares the gradients of ids that repeat in a batch one by one, as "
                "clipping by norm does. Here gradients are summed before; see "
                '"Differences from a plain script" in docs/training.md.',
                self._definition.origin,
                ", ".join(paths),
                type(_plain_optimizers(self.optimizer)[0]).__name__,
            )

    def _block(self, buffer: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the part of a contribution that is changes of statistics."""
        return buffer[buffer.size - self._changes.size :]

    def _classify_statistics(self, batch: Batch) -> None:
        """Compare what the two halves of a batch change with what the whole one does."""

        def changes(part: slice | None) -> list[np.ndarray[Any, Any]]:
            def take(array: Any) -> Any:
                return np.concatenate([array, array]) if part is None else array[part]

            features = map_arrays(tf.convert_to_tensor, map_arrays(take, batch.features))
            before = self._changes.copies()
            self._set_seeds(tf.constant([self.step, self.slot], tf.int64))
            with self._generators.used():
                self.model(self._adapt(features), training=True)
            found = []
            for variable, old in zip(self._statistics, before, strict=True):
                found.append(change_of(old, variable.value))
                variable.assign(old)
            return found

        self._changes.classify(batch.num_examples, changes)

    def _evaluate(self, features: Any, labels: Any, weights: Any, at: tf.Tensor) -> Any:
        self.evaluation_metrics.variables.begin()
        outputs = self._forward_without_trace(features, at)
        return self._states(outputs, features, labels, weights)

    def _examine(self, features: Any, labels: Any, weights: Any, at: tf.Tensor) -> Any:
        self.evaluation_metrics.variables.begin()
        outputs = self._forward_without_trace(features, at)
        states = self._states(outputs, features, labels, weights)
        values = {} if labels is None else self.evaluation_metrics.values(outputs, labels)
        if "loss" in states and not self._definition.compiled and not self._computes_loss:
            alone = self._losses_alone(outputs, labels, weights)
            values = {"loss": alone, **values}
        return states, outputs, values

    def _losses_alone(self, outputs: Any, labels: Any, weights: Any) -> tf.Tensor:
        """Return each example's loss, as that of a batch of it."""
        masks = reduction.masks_of(outputs)
        # Nothing stands for "none" where examples are taken one by one.
        beside = {str(i): mask for i, mask in enumerate(masks) if mask is not None}
        if weights is not None:
            beside["weights"] = weights

        def one(outputs: Any, labels: Any, beside: Any) -> tf.Tensor:
            given = [beside.get(str(i)) for i in range(len(masks))]
            # Of a batch of one, so penalties on weights are in it, as they are in the mean.
            masked = reduction.with_masks(outputs, given)
            return self._with_added(self._loss_alone(masked, labels, beside.get("weights")))

        return examples.one_by_one(one, outputs, labels, beside, eager=self._eager)

    def _states(self, outputs: Any, features: Any, labels: Any, weights: Any) -> Any:
        loss = None
        if self._has_loss and labels is not None:
            loss = self._loss(features, outputs, labels, weights, training=False)
        num_examples = tf.cast(tf.shape(leaves(features)[0])[0], tf.float32)
        return self.evaluation_metrics.states(loss, outputs, labels, num_examples, weights)

    def _predict(self, features: Any, labels: Any, weights: Any, at: tf.Tensor) -> Any:
        del labels, weights
        return self._forward_without_trace(features, at)

    def _forward_without_trace(self, features: Any, at: tf.Tensor) -> Any:
        """Run the model for looking only: a layer fixed to `training=True` moves nothing."""
        before = [tf.identity(v.value) for v in self._statistics]
        self._set_seeds(at)
        outputs = self.model(self._adapt(features), training=False)
        with tf.control_dependencies(leaves(outputs)):
            for variable, old in zip(self._statistics, before, strict=True):
                variable.assign(old)
            return map_arrays(_after, outputs)

    def _forward_backward(self, features: Any, labels: Any, weights: Any, at: tf.Tensor) -> Any:
        self._set_seeds(at)
        with tf.GradientTape() as tape:
            outputs = self.model(self._adapt(features), training=True)
            loss = self._loss(features, outputs, labels, weights, training=True)
            scaled = self.optimizer.scale_loss(loss)
        self._weights.check_unchanged()
        gradients = tape.gradient(scaled, [v.value for v in self._trainable])
        return outputs, loss, self._pulled(gradients) if self._is_pulled else gradients

    def _pulled(self, gradients: list[Any]) -> list[Any]:
        """Add the proximal term's gradients, in the scale of those of the loss."""
        pulled = []
        for gradient, variable, anchor in zip(
            gradients, self._trainable, self._anchors, strict=True
        ):
            term = self._pull * (tf.cast(variable.value, tf.float32) - tf.cast(anchor, tf.float32))
            term = self.optimizer.scale_loss(tf.cast(term, variable.dtype))
            pulled.append(term if gradient is None else tf.convert_to_tensor(gradient) + term)
        return pulled

    def _loss(
        self, features: Any, outputs: Any, labels: Any, weights: Any, *, training: bool
    ) -> tf.Tensor:
        splitting.check_averages(self._losses(), self._definition.where("loss"))
        if self._definition.compiled:
            found = compiled.loss(self.model, features, outputs, labels, training=training)
            return tf.cast(found, tf.float32)
        if self._computes_loss:
            x = self._adapt(features)
            own = compiled.own_loss(self.model, x, labels, outputs, weights, training=training)
            return tf.cast(own, tf.float32)
        return self._with_added(self._loss_alone(outputs, labels, weights))

    def _with_added(self, loss: tf.Tensor) -> tf.Tensor:
        """Return the loss and what layers have added."""
        for extra in self.model.losses:
            loss += tf.cast(extra, tf.float32)
        return loss

    def _loss_alone(self, outputs: Any, labels: Any, weights: Any) -> tf.Tensor:
        """Return the mean of the user's loss, without what layers have added."""
        if self._definition.loss is None:
            raise DefinitionError(f"{self._definition.origin}: there is no loss to train with.")
        loss = made(self._definition.loss)
        if isinstance(loss, WeighableLoss):
            # It looks for masks by itself. Without a reduction of its own, it is averaged.
            return tf.reduce_mean(tf.cast(loss.weighted(outputs, labels, weights), tf.float32))
        theirs = as_numpy(labels) if self._definition.labels_as_numpy else labels
        values = tf.cast(unwrap(loss(outputs, theirs)), tf.float32)
        mask = reduction.mask_of(outputs)
        return reduction.batch_loss(values, mask, weights, self._definition.where("loss"))

    def _set_seeds(self, at: tf.Tensor) -> None:
        """Make all randomness of this step a function of (seed, step, slot)."""
        step, slot = at[0], at[1]
        if tf.executing_eagerly():
            self._generators.seed(derive_seed(self._seed, int(step), int(slot)))
        for number, variable in enumerate(self._seed_variables):
            values = tf.random.stateless_uniform(
                variable.shape,
                seed=tf.stack(
                    [step, slot * 2**32 + tf.constant(self._seed + (number << 48), tf.int64)]
                ),
                maxval=2**31 - 1,
                dtype=tf.int32,
            )
            variable.assign(tf.cast(values, variable.dtype))

    # --- compiling ------------------------------------------------------------------------

    def _call(
        self,
        name: str,
        function: Callable[..., Any],
        arrays: tuple[Arrays, Arrays, Arrays],
        step: int,
        *,
        batches: Sequence[Batch],
        fixed_axis: int | None = None,
    ) -> Any:
        """Call a compiled function, compiling it for these shapes first where it is new.

        Args:
            name: Which function.
            function: Takes features, labels, sample weights and the step.
            arrays: Features, labels and sample weights.
            step: Number of the first step.
            batches: What the arrays are of, for errors.
            fixed_axis: The axis whose length may be compiled in; the one before is open.
        """
        # A signature has no place for "no labels": an empty tuple stands for them.
        tensors = tuple(() if a is None else map_arrays(tf.convert_to_tensor, a) for a in arrays)
        at = tf.constant([step, self.slot], tf.int64)
        axes = 2 if name == "train" else 1
        try:
            opened = self._open_axes(name, arrays, axes)
            if opened:
                # One function for batches of any size and length.
                fixed_axis = None
            # NumPy is asked for the shapes: TensorFlow takes a while to say them.
            shapes = tuple(
                signature(np.shape(array), number, axes, fixed_axis, opened)
                for number, array in enumerate(leaves(arrays))
            )
            dtypes = tuple(tensor.dtype for tensor in leaves(tensors))

            def compile_() -> Callable[..., Any]:
                specs = iter(map(tf.TensorSpec, shapes, dtypes))
                return self._compile(
                    lambda features, labels, weights, at: function(
                        features, _or_none(labels), _or_none(weights), at
                    ),
                    (*map_arrays(lambda _: next(specs), tensors), tf.TensorSpec([2], tf.int64)),
                )

            key = (name, fixed_axis, self._is_pulled, arrays[2] is None, shapes, dtypes)
            return self._compiled.get(key, compile_)(*tensors, at)
        except NotANumpyFunctionError as error:
            if self._eager:
                raise
            self._draws.check_uncompiled()
            _log.warning(
                "%s uses %s, which TensorFlow cannot compile; steps run uncompiled and slower.",
                self._definition.origin.file,
                error,
            )
            self._eager = True
            self._compiled.clear()
            return self._call(name, function, arrays, step, batches=batches, fixed_axis=fixed_axis)
        except ElasticDLError:
            raise
        except Exception as error:
            if isinstance(error, tf.errors.OpError):
                self._python_code.check()
            raise failures.of_a_step(
                error,
                name,
                step + 1,
                batches=batches,
                definition=self._definition,
                predict=self._predict_uncompiled,
            ) from error

    def _open_axes(self, name: str, arrays: Sequence[Arrays], leading: int) -> Axes:
        """Return which axes after those of the batch a function is compiled without."""
        if self._eager:
            return frozenset()
        found = self._lengths.open_axes(arrays, leading)
        if not found:
            return found
        if self._opens is None:
            features = arrays[0]
            if name == "train":
                features = map_arrays(lambda array: array[0], features)
            self._opens = True
            self._opens = self._says_the_same_opened(features)
            if not self._opens:
                _log.warning(
                    "%s: the model cannot be compiled for sequences (or pictures) of any length, "
                    "or computes something else then, as TimeDistributed does. A step is compiled "
                    "for each length instead, which takes seconds: pad to a few lengths.",
                    self._definition.origin.file,
                )
        return found if self._opens else frozenset()

    def _says_the_same_opened(self, features: Arrays) -> bool:
        """Compare a batch's outputs with and without open axes; some code relies on lengths."""
        try:
            opened = leaves(self._predicted(features))
        except (DataError, TrainingError, UserCodeError):
            # That is what is to be found out; on its own length it raises again if it is wrong.
            return False
        with self._uncompiled():
            fixed = leaves(self._predicted(features))
        return all(
            one.shape == other.shape
            and np.allclose(one, other, rtol=_LOOSELY, atol=_LOOSELY, equal_nan=True)
            for one, other in zip(fixed, opened, strict=True)
        )

    def _compile(self, function: Callable[..., Any], signature: Any) -> Callable[..., Any]:

        def drawing(*arguments: Any) -> Any:
            with (
                self._drawing_at("step"),
                self._draws.replaced(),
                self._attributes.as_made(),
            ):
                return function(*arguments)

        def tracing(*arguments: Any) -> Any:
            # The same at each step, and on all workers: it is not traced in each of them.
            self._generators.seed(self._seed)
            drawn_from = self._python_code.eager_only if self._is_eager_only else self._generators
            with (
                drawn_from.used(),
                self._draws.replaced(),
                self._attributes.as_made(),
                self._uncounted(),
            ):
                return function(*arguments)

        if self._eager:
            return drawing
        # Compiled here and now: TensorFlow takes functions that are made anew for other shapes
        # for one that is compiled again and again, and warns of it.
        concrete: Callable[..., Any] = tf.function(
            tracing, input_signature=signature, autograph=False
        ).get_concrete_function()
        self._draws.check(concrete, self._seed_variables)
        self._python_code.watch(concrete)
        if self._is_keras:
            self._outside.look_into(concrete)
        return concrete

    @contextlib.contextmanager
    def _drawing_at(self, moment: str, number: int = 0) -> Iterator[None]:
        """Make what Python code draws meanwhile a function of the seed, the step and the moment."""
        which = zlib.crc32(moment.encode())
        self._generators.seed(derive_seed(self._seed, self.step, which, number))
        with self._generators.used():
            yield

    @contextlib.contextmanager
    def _at_moment(self, moment: str, number: int) -> Iterator[None]:
        """Let callbacks draw, and not change what `fit` would compile its step with."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._drawing_at(moment, number))
            if self._is_eager_only:
                advice = (
                    "Steps are compiled here, with run_eagerly=True as well, and do not see it. "
                    "Make it a weight of a layer (self.add_weight(..., trainable=False))."
                )
            else:
                advice = (
                    "A step is compiled with what the model file made, and `fit` would see this "
                    "change and no later one. Set it in the model file, or make it a weight of a "
                    "layer (self.add_weight(..., trainable=False)), which can change at any time."
                )
            if self.step == 0 or self._is_eager_only:
                stack.enter_context(self._attributes.watched(f"a callback's {moment}()", advice))
            yield

    def _uncounted(self) -> contextlib.AbstractContextManager[None]:
        """Refuse code that counts in Python and expects to run for each step."""
        if not self._is_eager_only:
            return contextlib.nullcontext()
        return self._attributes.watched(
            "the model",
            "Steps are compiled here, with run_eagerly=True as well, so that it would change once. "
            "Make it a weight (self.add_weight(..., trainable=False)) and assign to it.",
        )

    @contextlib.contextmanager
    def _uncompiled(self) -> Iterator[None]:
        """Call functions as they are: what is called once is not worth the time to compile it."""
        eager, functions = self._eager, self._compiled
        self._eager, self._compiled = True, Functions()
        try:
            yield
        finally:
            self._eager, self._compiled = eager, functions

    def _predict_uncompiled(self, features: Arrays) -> Arrays:
        with self._uncompiled():
            return self._predicted(features)

    def _out_of_range(self, error: Exception, batch: Batch) -> DataError | None:
        predict = self._predict_uncompiled
        return failures.out_of_range(error, [batch], self._definition, predict)

    @contextlib.contextmanager
    def _naming(self, batch: Batch) -> Iterator[None]:
        """Turn what user code raises into an error that names the batch and their lines."""
        try:
            yield
        except ElasticDLError:
            raise
        except Exception as error:
            if mistake := self._out_of_range(error, batch):
                raise mistake from error
            raise UserCodeError(
                f"{raised_at(error, self._definition.origin)}: the model or its loss raised on "
                f"{describe(batch.features)}:\n{users_traceback(error)}"
            ) from error

    # --- the rest ---------------------------------------------------------------------------

    @property
    def _has_loss(self) -> bool:
        definition = self._definition
        return definition.compiled or definition.loss is not None or self._computes_loss

    def _create_metrics(self, mode: Mode, example: Batch) -> KerasMetrics | CompiledMetrics:
        definition = self._definition
        if definition.compiled and example.labels is not None:
            features, labels = map_arrays(tf.convert_to_tensor, (example.features, example.labels))
            outputs = self._forward_without_trace(features, tf.zeros([2], tf.int64))
            try:
                return CompiledMetrics(
                    self.model, features, outputs, labels, where=str(definition.origin)
                )
            except ElasticDLError:
                raise
            except Exception as error:
                if mistake := self._out_of_range(error, example):
                    raise mistake from error
                raise UserCodeError(
                    f"{raised_at(error, definition.where('model'))}: the loss or the metrics that "
                    f"the model was compiled with raised on {describe(example.features)}, labels "
                    f"{describe(example.labels[0])}, sample weights "
                    f"{describe(example.labels[1])}:\n{users_traceback(error)}"
                    f"{_WEIGHTS_SHAPE if 'ncompatible shapes' in str(error) else ''}"
                ) from error
        return KerasMetrics(
            definition.create_metrics(mode),
            labels_as_numpy=definition.labels_as_numpy,
            where=str(definition.origin),
            tracked=tracked_metrics(self.model),
        )

    def _probe_on_example(self, example: Batch, metrics: KerasMetrics | CompiledMetrics) -> None:
        """Find out before the first step what a metric of the user's own does with batches.

        Raises:
            DefinitionError: It has a name that is taken, or keeps no state that could be kept.
        """
        if example.labels is None or not metrics.looks_at_outputs:
            return
        # What raises here raises again on the first batch, which can be named then.
        with contextlib.suppress(DataError, UserCodeError):
            self._probe(example, metrics)

    def _probe_if_unproved(self, batch: Batch, metrics: KerasMetrics | CompiledMetrics) -> None:
        if metrics.variables.unproved and not metrics.variables.ordered:
            self._probe(batch, metrics)

    def _probe(self, batch: Batch, metrics: KerasMetrics | CompiledMetrics) -> None:
        """Compare a metric's states after two parts of a batch with their sum."""
        num_examples = min(batch.num_examples, _MAX_PROBED)
        middle = num_examples // 2

        def part(rows: slice) -> Callable[[], None]:
            def take(array: Any) -> tf.Tensor:
                return tf.convert_to_tensor(array[rows])

            features, labels, weights = (
                None if arrays is None else map_arrays(take, arrays) for arrays in _parts(batch)
            )
            size = tf.constant(len(range(num_examples)[rows]), tf.float32)

            def update() -> None:
                outputs = self._forward_without_trace(features, tf.zeros([2], tf.int64))
                loss = None
                if self._has_loss:
                    loss = self._loss(features, outputs, labels, weights, training=False)
                metrics.states(loss, outputs, labels, size, weights)

            return update

        first = part(slice(0, middle or 1))
        try:
            with self._generators.used():
                if metrics.variables.unproved:
                    metrics.variables.probe(first, part(slice(middle, num_examples)))
                else:
                    first()
        except ElasticDLError:
            raise
        except Exception as error:
            if mistake := self._out_of_range(error, batch):
                raise mistake from error
            raise UserCodeError(
                f"{raised_at(error, self._definition.origin)}: the metrics raised on "
                f"{describe(batch.features)}:\n"
                f"{users_traceback(error)}"
            ) from error

    def _create_optimizer(self) -> keras.optimizers.Optimizer:
        optimizer = self._definition.create_optimizer()
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise DefinitionError(
                f"{self._definition.where('optimizer')}: the optimizer is a "
                f"{type(optimizer).__module__}.{type(optimizer).__name__}; expected an optimizer "
                "of Keras 3, such as keras.optimizers.Adam(0.001)."
            )
        if not self._definition.compiled:
            # Callbacks look for `model.optimizer`.
            self.model.compile(optimizer=optimizer)
            # In half precision Keras has wrapped it in one that scales the loss.
            optimizer = self.model.optimizer
        optimizer.build(self._trainable)
        return optimizer

    def _variables(self) -> dict[str, Any]:
        variables: dict[str, Any] = {}
        for kind, members in (
            ("model", [*self._trainable, *self._statistics]),
            ("optimizer", self.optimizer.variables),
        ):
            for variable in members:
                path = f"{kind}/{variable.path}"
                number = 1
                while path in variables:
                    # Two variables of a subclass model may share a path; their order is fixed.
                    number += 1
                    path = f"{kind}/{variable.path}#{number}"
                variables[path] = variable
        return variables

    def _all_variables(self) -> list[Any]:
        """Return what a step may change: what is kept, and what is set anew for each step."""
        measured = (*self.training_metrics.variables.members.values(), *self.model.metrics)
        measured = (*measured, *self.evaluation_metrics.variables.members.values())
        return [
            *self.model.variables,
            *self.optimizer.variables,
            *self._changes.own_variables,
            *(variable for metric in measured for variable in metric.variables),
            *self._seed_variables,
            *self._anchors,
            *([] if self._pull is None else [self._pull]),
            *self.hooks.variables(),
        ]

    def _look_outside_at_first(self) -> None:
        """Refuse a variable that a step itself moves when the first one was made."""
        if not self._looked_outside:
            self._looked_outside = True
            self._outside.check_unmoved()

    def _check_gradients_add_up(self) -> None:
        """Refuse weights whose "gradient" is their next value, as scales of float8 are.

        Raises:
            DefinitionError: There is one.
        """
        for variable in self._trainable:
            if getattr(variable, "overwrite_with_gradient", False):
                raise DefinitionError(
                    f"{self._definition.origin}: the gradient of {variable.path} is its next value "
                    "(overwrite_with_gradient; float8 keeps maxima of a batch so), and would be "
                    "averaged over the batches of several workers or of --global_batch_size. Train "
                    "in one process without --global_batch_size, or in mixed_bfloat16."
                )

    def _split_loss(self, batch: Batch) -> None:
        """Find out what the loss is divided by, or that it cannot be split into parts."""
        origin, is_compiled = self._definition.where("loss"), self._definition.compiled
        if self._has_loss and not self._computes_loss:
            splitting.check_ignores_nothing(self._losses(), origin)

        def forward(trial: Trial, step: int = 0) -> tuple[Any, float]:
            outputs = self._forward_without_trace(trial.features, tf.constant([step, 0], tf.int64))
            return outputs, sum(float(tf.reduce_sum(extra)) for extra in self.model.losses)

        def loss_of(trial: Trial) -> float:
            if not self._has_loss:
                return 0.0
            if is_compiled or self._computes_loss:
                found = self._loss(
                    trial.features, trial.outputs, trial.labels, trial.weights, training=True
                )
            else:
                found = self._loss_alone(trial.outputs, trial.labels, trial.weights)
            return float(found)

        self._check_gradients_add_up()
        features, labels, weights = map_arrays(tf.convert_to_tensor, list(_parts(batch)))
        trial = Trial(features, None, labels, weights, batch.num_examples)
        reason = None
        drawing = self._drawing_at("split")
        with self._naming(batch), self._uncompiled(), self._draws.replaced(), drawing:
            trial = replace(trial, outputs=forward(trial)[0])
            kind = splitting.find_divisor(loss_of, trial, origin, weights_in_labels=is_compiled)
            if kind is not None and self.model.losses:
                given = replace(trial, weights=labels[1] if is_compiled else weights)
                reason = splitting.check_added(forward, given, kind, origin)
        if kind is None:
            return
        if reason is not None:
            _log.warning(
                "%s: whether the loss that layers add is a mean over examples cannot be seen, "
                "because %s. Workers add it up as one.",
                origin,
                reason,
            )
        self._divisor, self._loss_was_split = kind, True


def _parts(batch: Batch) -> tuple[Arrays, Arrays, Arrays]:
    return batch.features, batch.labels, batch.weights


def _or_none(arrays: Any) -> Any:
    """Return arrays, or None for the empty tuple that stands for none in a signature."""
    return None if isinstance(arrays, tuple) and not arrays else arrays


def _as_addend(state: tf.Tensor) -> tf.Tensor:
    """Return a float32 number as a float64, of which some hundreds add up without rounding."""
    return tf.cast(state, tf.float64) if state.dtype.is_floating else state


def _after(output: tf.Tensor) -> tf.Tensor:
    """Return an output that is there when what the surrounding block waits for has happened."""
    waited = tf.identity(output)
    reduction.carried(waited, reduction.mask_of(output))
    # A loss `from_logits` finds those of a softmax here, in Keras as in training.
    if hasattr(output, "_keras_logits"):
        waited._keras_logits = output._keras_logits  # noqa: SLF001 - Keras has no public name
    return waited


def _plain_optimizers(optimizer: Any) -> list[Any]:
    """Return the optimizers that make the updates, without those that wrap them."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return _plain_optimizers(inner)
    several = getattr(optimizer, "optimizers", None)
    return [one for each in several for one in _plain_optimizers(each)] if several else [optimizer]


def _is_linear(optimizer: Any) -> bool:
    """Whether an update is the same for rows of one id and for their sum."""
    kinds = (keras.optimizers.SGD, keras.optimizers.Lion)
    return type(optimizer) in kinds and not (optimizer.clipnorm or optimizer.global_clipnorm)


def _restart_names() -> None:
    """Let Keras name layers from the start again.

    Given names count up in a process (`conv2d`, `conv2d_1`, ...); parameters are keyed by
    them, so the second model of a process must be named like the first.
    """
    policy = keras.config.dtype_policy()
    keras.utils.clear_session(free_memory=False)
    keras.config.set_dtype_policy(policy)


def _to_numpy(states: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(np.asarray(a) for a in arrays) for name, arrays in states.items()}


def _shape_of(array: Any) -> str:
    return "missing" if array is None else f"{array.dtype}{list(array.shape)}"
