"""One step of a Keras 3 model on TensorFlow; see `training/trainer.py` for the laws.

All steps of full minibatches run through one compiled function that loops over a group of
batches, a group of one included. So a step's bits do not depend on how steps are grouped,
and a group pays for one call. Batches of another size (the last of an epoch) go through a
second function whose batch axis is open.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from elasticdl.data.batch import Arrays, Batch, describe, leaves, map_arrays, stack
from elasticdl.definition import Mode, ModelDefinition
from elasticdl.errors import (
    CorruptCheckpointError,
    DefinitionError,
    ElasticDLError,
    TrainingError,
    UserCodeError,
    users_traceback,
)
from elasticdl.training.keras import compiled, examples, inputs
from elasticdl.training.keras import export as exporting
from elasticdl.training.keras.compiled import CompiledMetrics
from elasticdl.training.keras.hooks import KerasHooks
from elasticdl.training.keras.labels import NotANumpyFunctionError, as_numpy, unwrap
from elasticdl.training.keras.lengths import Axes, Functions, Lengths, signature
from elasticdl.training.keras.metrics import KerasMetrics, tracked_metrics
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
        keras.utils.set_random_seed(seed % 2**32)
        _restart_names()
        self.step = 0
        self.slot = slot
        self._definition = definition
        self._minibatch_size = minibatch_size
        self._seed = seed % 2**31
        self.model: keras.Model = definition.create_model()
        if definition.compiled:
            compiled.check(self.model, definition.origin)
        self._adapt = inputs.build(self.model, example.features, definition.origin)
        self._trainable = self.model.trainable_variables
        self._seed_variables = [
            v for v in self.model.non_trainable_variables if v.path.endswith(_SEED_VARIABLE)
        ]
        seed_ids = {id(v) for v in self._seed_variables}
        self._statistics = [v for v in self.model.non_trainable_variables if id(v) not in seed_ids]
        self.optimizer = self._create_optimizer()
        self.training_metrics = self._create_metrics(Mode.TRAINING, example)
        self.evaluation_metrics = self._create_metrics(Mode.EVALUATION, example)
        for metrics in (self.training_metrics, self.evaluation_metrics):
            self._probe_on_example(example, metrics)
        self.hooks = KerasHooks(self.model, definition.create_callbacks())
        self._with_gradient: list[int] | None = None
        # What parameters are pulled to, and how strongly: variables, so that a compiled step
        # serves all rounds.
        self._anchors: list[tf.Variable] = []
        self._pull: tf.Variable | None = None
        self._is_pulled = False
        self._compiled = Functions()
        self._lengths = Lengths(example.features, example.labels)
        self._few = map_arrays(lambda array: array[:2], example.features)
        self._opens: bool | None = None
        self._eager = False
        self._loss_is_a_mean = False

    # --- the seven methods -------------------------------------------------------------

    def train_steps(
        self, batches: Sequence[Batch], so_far: MetricStates | None = None
    ) -> StepResult:
        """See `trainer.Trainer`."""
        self.training_metrics.variables.resume(so_far)
        group = (
            stack([batch.features for batch in batches]),
            stack([batch.labels for batch in batches]),
        )
        full = batches[0].num_examples == self._minibatch_size
        losses, metrics = self._call(
            "train", self._train_group, group, self.step, fixed_axis=1 if full else None
        )
        self.step += len(batches)
        states = {**_to_numpy(metrics), **self.training_metrics.variables.carried()}
        return StepResult(losses.numpy(), states)

    def gradients(
        self, batch: Batch, so_far: MetricStates | None = None
    ) -> tuple[Contribution, StepResult]:
        """See `trainer.Trainer`."""
        if not self._loss_is_a_mean:
            self._check_loss_is_a_mean(batch)
        variables = self.training_metrics.variables
        variables.resume(so_far)
        buffer, loss, metrics = self._call(
            "gradients", self._gradients, (batch.features, batch.labels), self.step
        )
        states = {**_to_numpy(metrics), **variables.carried()}
        self._probe_if_unproved(batch, self.training_metrics)
        return (
            Contribution(buffer.numpy(), batch.num_examples),
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
        apply(tf.convert_to_tensor(total.buffer), tf.constant(total.num_examples, tf.float32))
        self.step += 1

    def evaluate(self, batch: Batch, so_far: MetricStates | None = None) -> MetricStates:
        """See `trainer.Trainer`."""
        variables = self.evaluation_metrics.variables
        variables.resume(so_far)
        found = self._call("evaluate", self._evaluate, (batch.features, batch.labels), self.step)
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
        outputs = self._call("predict", self._predict, (features, None), self.step)
        return map_arrays(lambda tensor: tensor.numpy(), outputs)

    def examine(self, batch: Batch, so_far: MetricStates | None = None) -> Examined:
        """See `trainer.Examiner`."""
        variables = self.evaluation_metrics.variables
        variables.resume(so_far)
        states, outputs, values = self._call(
            "examine", self._examine, (batch.features, batch.labels), self.step
        )
        return Examined(
            {**_to_numpy(states), **variables.carried()},
            map_arrays(np.asarray, outputs),
            {name: np.asarray(column, np.float64) for name, column in values.items()},
        )

    def state(self) -> State:
        """See `trainer.Trainer`; the seeds of dropout are no state, the step decides them."""
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
            outputs = self.predict(self._few)
        inputs = self._adapt(self._few)
        # What the model takes may be a part of the features: then nothing is known of its axes.
        is_all = len(leaves(inputs)) == len(leaves(self._few))
        return exporting.Example(inputs, outputs, self._lengths.seen if is_all else ())

    @contextlib.contextmanager
    def _without_trace(self) -> Iterator[None]:
        """Put back what a layer moves that is fixed to `training=True`."""
        before = [(v, v.numpy()) for v in (*self._statistics, *self._seed_variables)]
        try:
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
        reached = [self._trainable[i] for i in self._with_gradient or []]
        mean = contribution.buffer / np.float32(contribution.num_examples)
        found: dict[str, np.ndarray[Any, Any]] = {}
        first = 0
        for variable in [*reached, *self._statistics]:
            size = int(np.prod(variable.shape))
            found[paths[id(variable)]] = mean[first : first + size].reshape(variable.shape)
            first += size
        statistics = {paths[id(v)] for v in self._statistics}
        return (
            {path: array for path, array in found.items() if path not in statistics},
            {path: array for path, array in found.items() if path in statistics},
        )

    # --- the steps, as TensorFlow sees them ---------------------------------------------

    def _train_group(self, features: Any, labels: Any, at: tf.Tensor) -> Any:
        """Make one update for each entry of the first axis."""
        num_steps = tf.shape(leaves(features)[0])[0]

        def batch(i: Any) -> tuple[Any, Any, tf.Tensor]:
            def pick(array: tf.Tensor) -> tf.Tensor:
                return array[i]

            offset = tf.stack([tf.cast(i, tf.int64), tf.constant(0, tf.int64)])
            return map_arrays(pick, features), map_arrays(pick, labels), at + offset

        if self._eager:
            results = [self._train_one(*batch(i)) for i in range(int(num_steps))]
            total: Any = results[0][1]
            for _, metrics in results[1:]:
                total = tf.nest.map_structure(tf.add, total, metrics)
            return tf.stack([loss for loss, _ in results]), total
        # What the metrics are is only known from a trace. It is called as well: a step is traced
        # once.
        step = tf.function(self._train_one, autograph=False).get_concrete_function(*batch(0))
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

    def _train_one(self, features: Any, labels: Any, at: tf.Tensor) -> tuple[Any, dict[str, Any]]:
        self.training_metrics.variables.begin()
        outputs, loss, gradients = self._forward_backward(features, labels, at)
        self.optimizer.apply(gradients, self._trainable)
        num_examples = tf.cast(tf.shape(leaves(features)[0])[0], tf.float32)
        states = self.training_metrics.states(loss, outputs, labels, num_examples)
        # How many steps make a group hangs on the time they take: no bit of a sum may.
        return loss, tf.nest.map_structure(_as_addend, states)

    def _gradients(self, features: Any, labels: Any, at: tf.Tensor) -> Any:
        before = [tf.identity(v.value) for v in self._statistics]
        self.training_metrics.variables.begin()
        outputs, loss, gradients = self._forward_backward(features, labels, at)
        num_examples = tf.cast(tf.shape(leaves(features)[0])[0], tf.float32)
        self._with_gradient = [i for i, g in enumerate(gradients) if g is not None]
        parts = [
            tf.cast(tf.convert_to_tensor(gradients[i]), tf.float32) for i in self._with_gradient
        ]
        for variable, old in zip(self._statistics, before, strict=True):
            parts.append(tf.cast(variable.value, tf.float32) - tf.cast(old, tf.float32))
            variable.assign(old)
        flat = tf.concat([tf.reshape(part, [-1]) for part in parts], 0) * num_examples
        return flat, loss, self.training_metrics.states(loss, outputs, labels, num_examples)

    def _apply(self, buffer: tf.Tensor, num_examples: tf.Tensor) -> None:
        targets = [self._trainable[i] for i in self._with_gradient or []]
        shapes = [v.shape for v in targets] + [v.shape for v in self._statistics]
        parts = tf.split(buffer / num_examples, [int(np.prod(shape)) for shape in shapes])
        gradients: list[Any] = [None] * len(self._trainable)
        for i, part in zip(self._with_gradient or [], parts, strict=False):
            gradients[i] = tf.cast(
                tf.reshape(part, self._trainable[i].shape), self._trainable[i].dtype
            )
        self.optimizer.apply(gradients, self._trainable)
        for variable, part in zip(self._statistics, parts[len(targets) :], strict=True):
            change = tf.reshape(part, variable.shape)
            if not variable.dtype.startswith("float"):
                # A counter of the user's: every worker added the same whole number.
                change = tf.round(change)
            variable.assign_add(tf.cast(change, variable.dtype))

    def _evaluate(self, features: Any, labels: Any, at: tf.Tensor) -> Any:
        self.evaluation_metrics.variables.begin()
        return self._states(self._forward_without_trace(features, at), features, labels)

    def _examine(self, features: Any, labels: Any, at: tf.Tensor) -> Any:
        self.evaluation_metrics.variables.begin()
        outputs = self._forward_without_trace(features, at)
        states = self._states(outputs, features, labels)
        values = {} if labels is None else self.evaluation_metrics.values(outputs, labels)
        if "loss" in states and not self._definition.compiled:
            # Of a batch of one, so penalties on weights are in it, as they are in the mean.
            one = partial(self._loss, training=False)
            alone = examples.one_by_one(one, features, outputs, labels, eager=self._eager)
            values = {"loss": alone, **values}
        return states, outputs, values

    def _states(self, outputs: Any, features: Any, labels: Any) -> Any:
        loss = None
        if self._has_loss and labels is not None:
            loss = self._loss(features, outputs, labels, training=False)
        num_examples = tf.cast(tf.shape(leaves(features)[0])[0], tf.float32)
        return self.evaluation_metrics.states(loss, outputs, labels, num_examples)

    def _predict(self, features: Any, labels: Any, at: tf.Tensor) -> Any:
        del labels
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

    def _forward_backward(self, features: Any, labels: Any, at: tf.Tensor) -> Any:
        self._set_seeds(at)
        with tf.GradientTape() as tape:
            outputs = self.model(self._adapt(features), training=True)
            loss = self._loss(features, outputs, labels, training=True)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, [v.value for v in self._trainable])
        gradients = [_one_row_an_index(gradient) for gradient in gradients]
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

    def _loss(self, features: Any, outputs: Any, labels: Any, *, training: bool) -> tf.Tensor:
        if self._definition.compiled:
            found = compiled.loss(self.model, features, outputs, labels, training=training)
            return tf.cast(found, tf.float32)
        loss = self._loss_alone(outputs, labels)
        for extra in self.model.losses:
            loss += tf.cast(extra, tf.float32)
        return loss

    def _loss_alone(self, outputs: Any, labels: Any) -> tf.Tensor:
        """Return the mean of the user's loss, without what layers have added."""
        if self._definition.loss is None:
            raise DefinitionError(f"{self._definition.origin}: there is no loss to train with.")
        theirs = as_numpy(labels) if self._definition.labels_as_numpy else labels
        return tf.reduce_mean(tf.cast(unwrap(self._definition.loss(outputs, theirs)), tf.float32))

    def _set_seeds(self, at: tf.Tensor) -> None:
        """Make all randomness of this step a function of (seed, step, slot)."""
        step, slot = at[0], at[1]
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
        arrays: tuple[Arrays, Arrays],
        step: int,
        fixed_axis: int | None = None,
    ) -> Any:
        """Call a compiled function, compiling it for these shapes first where it is new.

        Args:
            name: Which function.
            function: Takes features, labels and the step.
            arrays: Features and labels.
            step: Number of the first step.
            fixed_axis: The axis whose length may be compiled in; the one before is open.
        """
        # A signature has no place for "no labels": an empty tuple stands for them.
        features, labels = map_arrays(tf.convert_to_tensor, arrays)
        tensors = (features, () if labels is None else labels)
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
                    lambda features, labels, at: function(
                        features, None if isinstance(labels, tuple) and not labels else labels, at
                    ),
                    (*map_arrays(lambda _: next(specs), tensors), tf.TensorSpec([2], tf.int64)),
                )

            key = (name, fixed_axis, self._is_pulled, shapes, dtypes)
            return self._compiled.get(key, compile_)(*tensors, at)
        except NotANumpyFunctionError as error:
            if self._eager:
                raise
            _log.warning(
                "%s uses %s, which TensorFlow cannot compile; steps run uncompiled and slower.",
                self._definition.origin.file,
                error,
            )
            self._eager = True
            self._compiled.clear()
            return self._call(name, function, arrays, step, fixed_axis)
        except ElasticDLError:
            raise
        except tf.errors.OpError as error:
            raise TrainingError(
                f"{self._definition.origin}: TensorFlow could not {name} at step {step + 1}: "
                f"{inputs.first_line(error)}"
            ) from error
        except Exception as error:
            batch = map_arrays(lambda a: a[0], arrays) if name == "train" else arrays
            raise UserCodeError(
                f"{self._definition.origin}: the model, its loss or its metrics raised in "
                f"{name!r} on {describe(batch[0])}"
                f"{'' if labels is None else ', labels ' + describe(batch[1])}:\n"
                f"{users_traceback(error)}"
            ) from error

    def _open_axes(self, name: str, arrays: tuple[Arrays, Arrays], leading: int) -> Axes:
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
            opened = leaves(self.predict(features))
        except (TrainingError, UserCodeError):
            # That is what is to be found out; on its own length it raises again if it is wrong.
            return False
        with self._uncompiled():
            fixed = leaves(self.predict(features))
        return all(
            one.shape == other.shape
            and np.allclose(one, other, rtol=_LOOSELY, atol=_LOOSELY, equal_nan=True)
            for one, other in zip(fixed, opened, strict=True)
        )

    def _compile(self, function: Callable[..., Any], signature: Any) -> Callable[..., Any]:
        if self._eager:
            return function
        # Compiled here and now: TensorFlow takes functions that are made anew for other shapes
        # for one that is compiled again and again, and warns of it.
        concrete: Callable[..., Any] = tf.function(
            function, input_signature=signature, autograph=False
        ).get_concrete_function()
        return concrete

    @contextlib.contextmanager
    def _uncompiled(self) -> Iterator[None]:
        """Call functions as they are: what is called once is not worth the time to compile it."""
        eager, functions = self._eager, self._compiled
        self._eager, self._compiled = True, Functions()
        try:
            yield
        finally:
            self._eager, self._compiled = eager, functions

    # --- the rest ---------------------------------------------------------------------------

    @property
    def _has_loss(self) -> bool:
        return self._definition.compiled or self._definition.loss is not None

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
                raise UserCodeError(
                    f"{definition.origin}: the loss or the metrics that the model was compiled "
                    f"with raised on {describe(example.features)}, labels "
                    f"{describe(example.labels[0])}:\n{users_traceback(error)}"
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
        with contextlib.suppress(UserCodeError):
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

            features, labels = map_arrays(take, (batch.features, batch.labels))
            size = tf.constant(len(range(num_examples)[rows]), tf.float32)

            def update() -> None:
                outputs = self._forward_without_trace(features, tf.zeros([2], tf.int64))
                loss = None
                if self._has_loss:
                    loss = self._loss(features, outputs, labels, training=False)
                metrics.states(loss, outputs, labels, size)

            return update

        first = part(slice(0, middle or 1))
        try:
            if metrics.variables.unproved:
                metrics.variables.probe(first, part(slice(middle, num_examples)))
            else:
                first()
        except ElasticDLError:
            raise
        except Exception as error:
            raise UserCodeError(
                f"{self._definition.origin}: the metrics raised on {describe(batch.features)}:\n"
                f"{users_traceback(error)}"
            ) from error

    def _create_optimizer(self) -> keras.optimizers.Optimizer:
        optimizer = self._definition.create_optimizer()
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise DefinitionError(
                f"{self._definition.origin}: the optimizer is a "
                f"{type(optimizer).__module__}.{type(optimizer).__name__}; expected an optimizer "
                "of Keras 3, such as keras.optimizers.Adam(0.001)."
            )
        if not self._definition.compiled:
            # Callbacks look for `model.optimizer`.
            self.model.compile(optimizer=optimizer)
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

    def _check_loss_is_a_mean(self, batch: Batch) -> None:
        """Compare a batch with its duplicate: the mean stays, a sum doubles."""
        with self._uncompiled():
            outputs = self.predict(batch.features)
        once_each = (batch.features, outputs, batch.labels)
        twice = map_arrays(lambda a: np.concatenate([a, a]), once_each)

        def loss_of(arrays: Any) -> float:
            features, out, labels = map_arrays(tf.convert_to_tensor, arrays)
            if not self._has_loss:
                return 0.0
            if self._definition.compiled:
                return float(compiled.loss(self.model, features, out, labels))
            return float(self._loss_alone(out, labels))

        once, doubled = loss_of(once_each), loss_of(twice)
        if not np.isclose(once, doubled, rtol=1e-3, atol=1e-6):
            raise DefinitionError(
                f"{self._definition.origin}: the loss of a batch is {once:.6g}, and "
                f"{doubled:.6g} of the same examples twice. Sums over workers need a loss that "
                "is a mean over the batch: use tf.reduce_mean instead of tf.reduce_sum."
            )
        self._loss_is_a_mean = True


def _as_addend(state: tf.Tensor) -> tf.Tensor:
    """Return a float32 number as a float64, of which some hundreds add up without rounding."""
    return tf.cast(state, tf.float64) if state.dtype.is_floating else state


def _after(output: tf.Tensor) -> tf.Tensor:
    """Return an output that is there when what the surrounding block waits for has happened."""
    waited = tf.identity(output)
    # A loss `from_logits` finds those of a softmax here, in Keras as in training.
    if hasattr(output, "_keras_logits"):
        waited._keras_logits = output._keras_logits  # noqa: SLF001 - Keras has no public name
    return waited


def _one_row_an_index(gradient: Any) -> Any:
    """Return an embedding's gradient with the rows of equal index summed.

    Keras squares the rows of such a gradient one by one, so an id that stands twice in a batch
    would move Adam's second moment by a^2 + b^2 and not by (a + b)^2.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    indices, places = tf.unique(gradient.indices)
    rows = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(indices))
    return tf.IndexedSlices(rows, indices, gradient.dense_shape)


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
