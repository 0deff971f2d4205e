"""The trainer of Keras 3 models on TensorFlow; see `training/trainer.py` for its contract.

All steps on full minibatches run through one compiled function that loops over a group of
batches; a group may be a single batch. The result of a step is therefore the same, bit for bit,
however steps are grouped, and a group costs one call. Batches of another size (the last of an
epoch) go through a second function, which is compiled for any number of examples.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from elasticdl.data.batch import Arrays, Batch, describe, leaves, map_arrays, stack
from elasticdl.definition import Mode, ModelDefinition
from elasticdl.errors import (
    DefinitionError,
    ElasticDLError,
    UserCodeError,
    raised_at,
    users_traceback,
)
from elasticdl.training import generators
from elasticdl.training.gradient_weights import check_divides_by_examples
from elasticdl.training.input_words import has_text
from elasticdl.training.keras import (
    compiled,
    evaluation,
    failures,
    inputs,
    loss_part_checks,
    metric_reads,
    moved_weights,
    optimizers,
    overrides,
    process_settings,
    reduction,
    saved_variables,
)
from elasticdl.training.keras import export as exporting
from elasticdl.training.keras.attributes import Attributes
from elasticdl.training.keras.compiled import CompiledMetrics
from elasticdl.training.keras.determinism import be_deterministic
from elasticdl.training.keras.hooks import KerasHooks
from elasticdl.training.keras.loss import TrainingLoss
from elasticdl.training.keras.loss_part_checks import ExampleBatch
from elasticdl.training.keras.metric_probe import MetricProbe
from elasticdl.training.keras.metrics import KerasMetrics, tracked_metrics
from elasticdl.training.keras.model_calls import ModelCalls
from elasticdl.training.keras.precision import loss_scale
from elasticdl.training.keras.proximal import ProximalTerm
from elasticdl.training.keras.python_code import PythonRandomGuard
from elasticdl.training.keras.random_ops import RandomOpReplacer
from elasticdl.training.keras.scores import scores_of
from elasticdl.training.keras.seeds import StepSeeder
from elasticdl.training.keras.split_checks import SplitChecks
from elasticdl.training.keras.statistics import ChangesOf, KerasStatistics, change_of, means_of
from elasticdl.training.keras.step_functions import StepFunctions, Watched, or_none, parts
from elasticdl.training.keras.summaries import Summaries
from elasticdl.training.keras.untracked_state import UntrackedVariables
from elasticdl.training.repeated_checks import RepeatedChecks
from elasticdl.training.trainer import (
    Contribution,
    MetricStates,
    PerExampleResults,
    State,
    StepResult,
    Weights,
)

if TYPE_CHECKING:
    from elasticdl.training.scores import Scores

_SEED_VARIABLE = "seed_generator_state"
_WEIGHTS_SHAPE = (
    "\n"
    "  As in Keras, sample weights have the shape of the loss or axes of 1: one per pixel, or (n, "
    "1, 1), where the loss has one value per pixel."
)


class KerasTrainer:
    """Trains one Keras model; see `trainer.Trainer`.

    Args:
        definition: What to train.
        example: An example batch; only its shapes and dtypes matter.
        minibatch_size: Examples in a full batch.
        seed: Determines the initial weights and, with step and rank, all randomness of steps.
        rank: This worker's rank.
        deterministic: Whether to require deterministic kernels. Costs speed only where TensorFlow
            has a faster kernel that is not deterministic.

    Raises:
        DefinitionError: The model does not fit the batch.
        UserCodeError: User code raised while creating the model.
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
        process_settings.check_backend(definition)
        process_settings.check_limits(definition)
        if deterministic:
            be_deterministic()
        self.step = 0
        self.rank = rank
        self._definition = definition
        self._minibatch_size = minibatch_size
        generators.install()
        self._generators = generators.Generators()
        self._python_code = PythonRandomGuard(definition.origin)
        self._summaries = Summaries()
        # Whether gradients of an example were computed before training began.
        self._warms_up = self._is_checking = False
        # Names that the user knows will be missing among the exports.
        self._known_not_exported: frozenset[str] = frozenset()
        # It seeds TensorFlow's generator, and those of NumPy and Python that are in use.
        with self._generators.used(), self._summaries.off():
            keras.utils.set_random_seed(seed % 2**32)
            process_settings.restart_names()
            self._create(example, seed % 2**31)
            self._share_seeds(example.features)
        if has_text(example.labels):
            # Few losses take text. The others raise here, before the first step.
            with self._summaries.off():
                self.evaluate(example)

    def _create(self, example: Batch, seed: int) -> None:
        definition = self._definition
        self.model: keras.Model = definition.create_model()
        self._is_eager_only = tf.config.functions_run_eagerly() or bool(
            getattr(self.model, "run_eagerly", False)
        )
        steps_per_execution = int(getattr(self.model, "steps_per_execution", 1))
        overrides.check(self.model, definition.where("model"), is_compiled=definition.compiled)
        if definition.compiled:
            compiled.check(self.model, definition.origin)
        # A model loaded by tf_keras has already searched for its random operations.
        is_keras = not hasattr(self.model, "inner")
        self._draws = RandomOpReplacer(definition.origin, is_strict=is_keras)
        self._adapt = inputs.build(
            self.model,
            example.features,
            definition.where("model"),
            is_default=definition.has_default_input,
        )
        self._weights = overrides.TrainedWeights(self.model, definition.where("model"))
        self._trainable = self._weights.trained
        seeds = [v for v in self._weights.others if v.path.endswith(_SEED_VARIABLE)]
        self._seeds = StepSeeder(seed, [*seeds, self._draws.state], self._generators)
        seed_ids = {id(v) for v in seeds}
        self._statistics = [v for v in self._weights.others if id(v) not in seed_ids]
        self._calls = ModelCalls(
            self.model, self._adapt, self._trainable, self._statistics, self._seeds
        )
        self._changes = self._create_changes()
        self.optimizer = optimizers.create(definition, self.model, self._trainable)
        overrides.check_reset(self.model, definition.where("model"))
        self._update_may_draw = optimizers.may_draw(self.optimizer, self._trainable)
        self._loss = TrainingLoss(self.model, definition, self._adapt)
        self._attributes = Attributes(definition.where("model"))
        if example.labels is not None:
            # Before any call of the loss, which may change its attributes.
            self._attributes.track_of_step(self._loss.objects())
        self._pull = ProximalTerm(self._trainable)
        self.training_metrics = self._create_metrics(Mode.TRAINING, example)
        self.evaluation_metrics = self._create_metrics(Mode.EVALUATION, example)
        self._metric_probe = MetricProbe(
            definition,
            self._calls.outputs,
            self._loss,
            self._generators,
            self._predict_uncompiled,
        )
        for metrics in (self.training_metrics, self.evaluation_metrics):
            self._metric_probe.on_example(example, metrics)
        self.hooks = KerasHooks(
            self.model,
            definition.create_callbacks(),
            self._attributes,
            str(definition.where("callbacks")),
            self.evaluation_metrics.direction,
            is_compiled=definition.compiled,
            drawing=self._at_moment,
            only_in_validation=(
                self.evaluation_metrics.variables.members.keys()
                - self.training_metrics.variables.members.keys()
            ),
        )
        if steps_per_execution > 1:
            self.hooks.check_grouping(steps_per_execution)
        self._attributes.track_model(self.model, self.optimizer)
        self._attributes.track_of_step(self._all_metrics())
        self._outside = UntrackedVariables(
            self.model, self.optimizer, self._all_variables, definition.origin
        )
        self._functions = StepFunctions(
            definition,
            example,
            Watched(
                draws=self._draws,
                seeds=self._seeds,
                generators=self._generators,
                python_code=self._python_code,
                attributes=self._attributes,
                summaries=self._summaries,
                outside=self._outside if is_keras else None,
                asks_for_eager=self._is_eager_only,
            ),
            drawing=self._drawing_at,
            predict=self._predicted,
        )
        self.hooks.evaluation_changed = self._functions.clear_evaluations
        self._with_gradient: list[int] | None = None
        self._few = map_arrays(lambda array: array[:2], example.features)
        self._splits = SplitChecks(
            definition,
            self._calls,
            self._loss,
            self._functions,
            self._draws,
            drawing=self._drawing_at,
            is_due=self._is_due,
            add_moved=self._add_moved,
        )
        # Apart from the other checks, which end with their first warning.
        self._repeated_comparisons = RepeatedChecks(definition.origin)
        self._recorded_outside = self._is_evaluation_checked = False

    # --- the Trainer protocol ----------------------------------------------------------

    def train_steps(
        self, batches: Sequence[Batch], so_far: MetricStates | None = None
    ) -> StepResult:
        """Apply one update per batch, all in one compiled call; see `trainer.Trainer`."""
        self.training_metrics.variables.resume(so_far)
        group = (
            stack([batch.features for batch in batches]),
            stack([batch.labels for batch in batches]),
            stack([batch.weights for batch in batches]),
        )
        full = batches[0].num_examples == self._minibatch_size
        losses, metrics = self._call(
            "train", self._train_group, group, batches=batches, fixed_axis=1 if full else None
        )
        self._record_outside_at_first()
        self.step += len(batches)
        states = {**_to_numpy(metrics), **self.training_metrics.variables.carried()}
        return StepResult(losses.numpy(), states)

    def gradients(
        self, batch: Batch, so_far: MetricStates | None = None
    ) -> tuple[Contribution, StepResult]:
        """Compute the batch's contribution to the next update; see `trainer.Trainer`."""
        self._warms_up = not self.hooks.has_begun
        with self._summaries.off():
            self._splits.check(batch, self.step)
            self._splits.check_padding(batch)
        variables = self.training_metrics.variables
        is_compared = self._is_due(self._repeated_comparisons)

        def computed(*, is_again: bool = False) -> Any:
            variables.resume(so_far)
            buffer, *rest = self._call(
                "gradients", self._gradients, parts(batch), batches=[batch], is_again=is_again
            )
            return buffer.numpy(), *rest

        buffer, loss, averaged, metrics = computed()
        if self._changes.must_be_classified(self._block(buffer)):
            self._changes.classify(batch.num_examples, self._changes_by(batch))
            buffer, loss, averaged, metrics = computed(is_again=True)
        elif is_compared and self._changes.can_be_compared(self._block(buffer)):
            # Some models do not accept a half; this must not end a running job.
            with contextlib.suppress(Exception):
                self._changes.compare_again(batch.num_examples, self._changes_by(batch), self.step)
        loss_part_checks.check_parts(
            float(loss), float(averaged), batch.num_examples, self._definition.where("loss")
        )
        self._record_outside_at_first()
        self._changes.check_finite(self._block(buffer))
        states = {**_to_numpy(metrics), **variables.carried()}
        with self._summaries.off():
            self._metric_probe.probe_unproved(batch, self.training_metrics)
        return (
            Contribution(buffer, batch.num_examples),
            StepResult(loss.numpy()[np.newaxis], states),
        )

    def checks_done(self) -> dict[str, Any]:
        """Return the checks that this worker has made before it summed gradients, as a JSON value.

        Another worker passes it to `take_over_checks`, to skip these checks.
        """
        return {**self._splits.done(), "changes": self._repeated_comparisons.state()}

    def take_over_checks(self, done: Mapping[str, Any]) -> None:
        """Skip the checks that `checks_done` of another worker lists."""
        self._splits.take_over(done)
        self._repeated_comparisons.load_state(done["changes"])

    def apply(self, total: Contribution) -> None:
        """Apply one update from summed contributions; see `trainer.Trainer`."""
        if total.num_examples == 0:
            return
        if self._with_gradient is None:
            raise RuntimeError("apply() before the first gradients(): the layout is not known.")
        specs = (tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.int64))
        try:
            # The first call traces it here.
            apply = self._functions.of_tensors("apply", self._apply, specs)
            apply(tf.convert_to_tensor(total.buffer), tf.constant(self.step, tf.int64))
        except ElasticDLError:
            raise
        except Exception as error:
            self._python_code.check()
            raise failures.of_an_update(error, self.step + 1, self._definition) from error
        self._changes.add_whole_numbers(self._block(total.buffer))
        self._splits.updated(total.num_examples)
        self.step += 1

    def warm_up(self, contribution: Contribution) -> None:
        """Compile `apply` before training begins, by applying a contribution and undoing it.

        All variables are restored; see `SupportsWarmup`. It is also forgotten which statistics are
        means and which are sums, as `gradients` determined it for the example batch: that batch
        repeats a few records, so its parts are alike and do not show how statistics add up.

        Args:
            contribution: What `gradients` returned for the example batch.
        """
        before = self.state()
        self.apply(contribution)
        self.load_state(before)
        self._changes.forget()

    def evaluate(self, batch: Batch, so_far: MetricStates | None = None) -> MetricStates:
        """Return the batch's additive metric states; see `trainer.Trainer`."""
        self.check_evaluation(batch)
        variables = self.evaluation_metrics.variables
        variables.resume(so_far)
        found = self._call("evaluate", self._evaluate, parts(batch), batches=[batch])
        states = {**_to_numpy(found), **variables.carried()}
        with self._summaries.off():
            self._metric_probe.probe_unproved(batch, self.evaluation_metrics)
        return states

    def require_sums(self, why: str) -> None:
        """Reject metrics whose states cannot be summed; see `trainer.Trainer`."""
        for metrics in (self.training_metrics, self.evaluation_metrics):
            if metrics.ordered:
                # A step that is already compiled leaves their states to be carried.
                self._functions.clear()
            metrics.variables.require_sums(why)

    def predict(self, features: Arrays) -> Arrays:
        """Return the model's outputs as numpy arrays, one row per example."""
        self.check_evaluation(Batch(features, None, 0))
        return self._predicted(features)

    def scores(self, shape: tuple[int, ...]) -> Scores | None:
        """Return what a classifier outputs: "probabilities" or "logits"; None if unknown."""
        return scores_of(self.model, self._definition, shape)

    def check_evaluation(self, batch: Batch) -> None:
        """Check that evaluation changes no weight; see `trainer.EvaluationProbe`."""
        if self._is_evaluation_checked:
            return
        features, labels, weights = map_arrays(tf.convert_to_tensor, list(parts(batch)))

        def call() -> None:
            self._seeds.set(tf.constant([self.step, self.rank], tf.int64))
            outputs = self.model(self._adapt(features), training=False)
            if self._loss.is_defined and labels is not None:
                self._loss(features, outputs, labels, weights, training=False)

        changed: list[Any] = []
        # An exception here is raised again by the evaluation itself, which names the batch.
        with (
            contextlib.suppress(Exception),
            self._draws.replaced(),
            self._drawing_at("evaluation"),
            self._summaries.off(),
        ):
            changed = evaluation.changed_by(call, [*self._trainable, *self._statistics])
            self._is_evaluation_checked = not changed
        evaluation.check_unchanged(self.model, changed, self._definition.origin)
        self._is_evaluation_checked |= bool(changed)

    def _predicted(self, features: Arrays) -> Arrays:
        batch = Batch(features, None, 0)
        outputs = self._call("predict", self._predict, parts(batch), batches=[batch])
        return map_arrays(lambda tensor: tensor.numpy(), outputs)

    def evaluate_per_example(
        self, batch: Batch, so_far: MetricStates | None = None
    ) -> PerExampleResults:
        """Evaluate a batch, also per example; see `trainer.PerExampleEvaluator`."""
        self.check_evaluation(batch)
        variables = self.evaluation_metrics.variables
        variables.resume(so_far)
        states, outputs, values = self._call(
            "evaluate_per_example", self._evaluate_per_example, parts(batch), batches=[batch]
        )
        return PerExampleResults(
            {**_to_numpy(states), **variables.carried()},
            map_arrays(np.asarray, outputs),
            {name: np.asarray(column, np.float64) for name, column in values.items()},
        )

    def finish(self) -> None:
        """Replace the weights by the optimizer's averages of them, if any, as `fit` does."""
        self.optimizer.finalize_variable_values(self._trainable)

    @property
    def keeps_averages(self) -> bool:
        """Whether the optimizer averages the weights (`use_ema`), so that `finish` changes them."""
        return any(each.use_ema for each in optimizers.plain(self.optimizer))

    @property
    def measures_averages(self) -> bool:
        """Whether evaluations use the optimizer's averages of the weights: always False.

        As in Keras, only the callback `SwapEMAWeights` uses them in evaluations.
        """
        return False

    def state(self) -> State:
        """Return copies of all variables, except dropout seeds, which the step determines."""
        self._outside.check_unmoved()
        state = {path: np.array(variable.numpy()) for path, variable in self._variables().items()}
        state["step"] = np.array(self.step, np.int64)
        return state

    def load_state(self, state: State) -> None:
        """Restore all variables from a result of `state`; see `trainer.Trainer`."""
        saved_variables.load(self._variables(), state)
        self.step = int(state["step"])

    def export(self, folder: Any) -> list[str]:
        """Write `model.keras` and `saved_model/` into a folder; return the names written.

        One that cannot be written for this model is omitted, and the reason is logged, unless
        `why_not_exported` has returned it.
        """
        with self._without_trace():
            return exporting.export(
                self.model, folder, self._export_example(), self._known_not_exported
            )

    def schedule_of_updates(self) -> str:  # noqa: D102 - see trainer.ScheduleProbe
        name = optimizers.schedule_of(self.optimizer)
        return f"{self._definition.where('optimizer')}: {name}" if name else ""

    @contextlib.contextmanager
    def checking(self) -> Iterator[None]:
        """Context manager for calls that only check the model: they write no points."""
        self._is_checking = True
        try:
            yield
        finally:
            self._is_checking = False

    def why_not_exported(self) -> Mapping[str, str]:
        """Return the exports that `export` would omit: name -> reason. Writes no files."""
        if exporting.is_of_keras_only(self.model):
            # Nothing to find out, and trying a large model would take as long as several steps.
            return {}
        with self._without_trace():
            reasons = exporting.why_not_exported(self.model, self._export_example())
        self._known_not_exported = frozenset(reasons)
        return reasons

    def _export_example(self) -> exporting.Example:
        outputs = self._predict_uncompiled(self._few)
        inputs = self._adapt(self._few)
        # The model may take only a part of the features; then nothing is known about its axes.
        is_all = len(leaves(inputs)) == len(leaves(self._few))
        return exporting.Example(inputs, outputs, self._functions.lengths.seen if is_all else ())

    @contextlib.contextmanager
    def _without_trace(self) -> Iterator[None]:
        """Context manager: on exit, restores statistics and random seeds.

        Calls of the model in the block may change them, because a layer may run as in training.
        """
        before = [(v, v.numpy()) for v in (*self._statistics, *self._seeds.variables)]
        try:
            with self._drawing_at("export"), self._summaries.off():
                yield
        finally:
            for variable, value in before:
                variable.assign(value)

    def pull_towards(self, weights: Weights | None, strength: float) -> None:
        """Start adding the gradient of FedProx's proximal term; see `SupportsProximalTerm`.

        Args:
            weights: The weights to stay close to, by name. None: add no such term.
            strength: Factor of the term, mu in the paper.
        """
        if weights is None:
            self._pull.release()
            return
        paths = {id(v): path.removeprefix("model/") for path, v in self._variables().items()}
        self._pull.set_anchor(weights, [paths[id(v)] for v in self._trainable], strength)

    def by_name(self, contribution: Contribution) -> tuple[Weights, Weights]:
        """Return the mean gradients and the mean changes of statistics, each by variable path."""
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
        statistics = [paths[id(v)] for v in self._changes.variables]
        return gradients, dict(zip(statistics, changes, strict=True))

    # --- functions that TensorFlow traces -----------------------------------------------

    def _train_group(self, features: Any, labels: Any, weights: Any, at: tf.Tensor) -> Any:
        """Train one step per batch, within a compiled step.

        Args:
            features: Features of the batches, stacked along the first axis; likewise `labels` and
                `weights`, which may be None.
            labels: Labels.
            weights: Sample weights.
            at: Number of the first step, and this worker's rank: int64 [2].

        Returns:
            The loss of each step, and the metric states summed over the steps.
        """
        num_steps = tf.shape(leaves(features)[0])[0]

        def batch(i: Any) -> tuple[Any, Any, Any, tf.Tensor]:
            def pick(array: tf.Tensor) -> tf.Tensor:
                return array[i]

            def part(arrays: Any) -> Any:
                return () if arrays is None else map_arrays(pick, arrays)

            offset = tf.stack([tf.cast(i, tf.int64), tf.constant(0, tf.int64)])
            return part(features), part(labels), part(weights), at + offset

        def one(features: Any, labels: Any, weights: Any, at: tf.Tensor) -> Any:
            return self._train_one(features, or_none(labels), or_none(weights), at)

        if self._functions.is_eager:
            results = [one(*batch(i)) for i in range(int(num_steps))]
            total: Any = results[0][1]
            for _, metrics in results[1:]:
                total = tf.nest.map_structure(tf.add, total, metrics)
            return tf.stack([loss for loss, _ in results]), total
        # Only a trace reveals the structure of the metrics. The traced function is also the one
        # called, so a step is traced once.
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
        self._check_metric_reads(loss)
        self._update(gradients, at[0])
        num_examples = tf.cast(tf.shape(leaves(features)[0])[0], tf.float32)
        states = self.training_metrics.states(loss, outputs, labels, num_examples, weights)
        # The number of steps in a group depends on their duration, so no bit of a sum may depend on
        # it.
        return loss, tf.nest.map_structure(_as_addend, states)

    def _gradients(self, features: Any, labels: Any, weights: Any, at: tf.Tensor) -> Any:
        before = self._changes.copies()
        self.training_metrics.variables.begin()
        with moved_weights.assigned(self._trainable) as moved:
            outputs, loss, gradients = self._forward_backward(features, labels, weights, at)
        self._check_metric_reads(loss)
        self._add_moved(moved, is_again=True)
        num_examples = tf.cast(tf.shape(leaves(features)[0])[0], tf.float32)
        given = labels[1] if self._definition.compiled else weights
        divisor = reduction.divisor(self._splits.divisor, outputs, given, num_examples)
        self._with_gradient = [i for i, g in enumerate(gradients) if g is not None]
        optimizers.warn_of_repeated_rows(
            self.optimizer, self._trainable, gradients, self._definition
        )
        scale = loss_scale(self.optimizer)
        parts = [
            tf.reshape(tf.cast(tf.convert_to_tensor(gradients[i]), tf.float32) / scale, [-1])
            for i in self._with_gradient
        ]
        sums = tf.concat(parts, 0) * divisor
        changes = self._changes.take_changes(before, num_examples)
        flat = tf.concat([tf.reshape(divisor, [1]), sums, changes], 0)
        trial = ExampleBatch(features, outputs, labels, weights, num_examples)
        states = self.training_metrics.states(loss, outputs, labels, num_examples, weights)
        with self.training_metrics.variables.kept():
            averaged = self._loss.averaged_parts(trial, loss, self._splits.divisor)
        return flat, loss, averaged, states

    def _apply(self, buffer: tf.Tensor, step: tf.Tensor) -> None:
        targets = [self._trainable[i] for i in self._with_gradient or []]
        sizes = [int(np.prod(v.shape)) for v in targets]
        divisor, *parts, block = tf.split(buffer, [1, *sizes, self._changes.size])
        # The optimizer unscales the sum and looks for an overflow in it.
        scale = loss_scale(self.optimizer)
        gradients: list[Any] = [None] * len(self._trainable)
        for i, part in zip(self._with_gradient or [], parts, strict=True):
            # The divisor is 0 if every time step of every example is masked.
            mean = tf.math.divide_no_nan(part, divisor)
            gradient = tf.reshape(mean * scale, self._trainable[i].shape)
            gradients[i] = tf.cast(gradient, self._trainable[i].dtype)
        # First, as calls of the model change them before the update.
        self._changes.add_means_and_sums(block)
        self._update(gradients, step)

    def _update(self, gradients: Sequence[Any], step: tf.Tensor) -> None:
        """Apply gradients by the method that `fit` calls; a user's optimizer may override it."""
        if self._update_may_draw:
            self._seeds.set_for_update(step)
        if self._trainable:
            self.optimizer.apply_gradients(zip(gradients, self._trainable, strict=True))

    def _block(self, buffer: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return a view of the part of a contribution's buffer with the changes of statistics.

        `KerasStatistics` calls this part a block.

        Args:
            buffer: A flat array: the divisor, the gradients, and then this part.
        """
        return buffer[buffer.size - self._changes.size :]

    def _changes_by(self, batch: Batch) -> ChangesOf:
        """Return a function that computes how examples of a batch change the statistics.

        It calls the model in training mode and restores statistics and trained weights afterwards.
        """

        def changes(rows: Sequence[int], seed: int = 0) -> list[np.ndarray[Any, Any]]:
            features = map_arrays(lambda a: tf.convert_to_tensor(a[list(rows)]), batch.features)
            before = self._changes.copies()
            self._seeds.set(tf.constant([self.step, self.rank + seed], tf.int64))
            # TensorFlow's own operations draw from it while they run uncompiled.
            tf.random.set_seed(self._seeds.of_moment(self.step, "statistics", seed) % 2**31)
            with self._calls.unmoved():
                with self._generators.used(), self._draws.replaced(), self._summaries.off():
                    self.model(self._adapt(features), training=True)
                return [
                    change_of(old, variable.value)
                    for variable, old in zip(self._changes.variables, before, strict=True)
                ]

        return changes

    def _evaluate(self, features: Any, labels: Any, weights: Any, at: tf.Tensor) -> Any:
        self.evaluation_metrics.variables.begin()
        outputs = self._calls.without_trace(features, at)
        return self._states(outputs, features, labels, weights)

    def _evaluate_per_example(self, features: Any, labels: Any, weights: Any, at: tf.Tensor) -> Any:
        self.evaluation_metrics.variables.begin()
        outputs = self._calls.without_trace(features, at)
        states = self._states(outputs, features, labels, weights)
        values = {} if labels is None else self.evaluation_metrics.values(outputs, labels)
        if "loss" in states and self._loss.is_by_example:
            eager = self._functions.is_eager
            values = {
                "loss": self._loss.by_example(outputs, labels, weights, eager=eager),
                **values,
            }
        return states, outputs, values

    def _states(self, outputs: Any, features: Any, labels: Any, weights: Any) -> Any:
        loss = None
        if self._loss.is_defined and labels is not None:
            loss = self._loss(features, outputs, labels, weights, training=False)
        num_examples = tf.cast(tf.shape(leaves(features)[0])[0], tf.float32)
        return self.evaluation_metrics.states(loss, outputs, labels, num_examples, weights)

    def _predict(self, features: Any, labels: Any, weights: Any, at: tf.Tensor) -> Any:
        del labels, weights
        return self._calls.without_trace(features, at)

    def _forward_backward(self, features: Any, labels: Any, weights: Any, at: tf.Tensor) -> Any:
        self._seeds.set(at)
        with tf.GradientTape() as tape:
            outputs = self.model(self._adapt(features), training=True)
            loss = self._loss(features, outputs, labels, weights, training=True)
            scaled = self.optimizer.scale_loss(loss)
        self._weights.check_unchanged()
        gradients = tape.gradient(scaled, [v.value for v in self._trainable])
        if self._pull.is_on:
            gradients = self._pull.added_to(gradients, self.optimizer)
        return outputs, loss, gradients

    def _check_metric_reads(self, loss: tf.Tensor) -> None:
        metrics, origin = self.training_metrics.variables, self._definition.where("model")
        metric_reads.check(loss, metrics, origin)

    # --- calling them -----------------------------------------------------------------------

    def _call(
        self,
        name: str,
        function: Callable[..., Any],
        arrays: tuple[Arrays, Arrays, Arrays],
        *,
        batches: Sequence[Batch],
        fixed_axis: int | None = None,
        is_again: bool = False,
    ) -> Any:
        """Call a compiled function with this trainer's step and rank; see `StepFunctions.call`.

        With `is_again`, it repeats a call whose points of `tf.summary` are written already.
        """
        is_warm_up = self._warms_up and not self.hooks.has_begun
        is_own = is_again or is_warm_up or self._is_checking
        self._summaries.switch(on=self.rank == 0 and not is_own)
        return self._functions.call(
            name,
            function,
            arrays,
            (self.step, self.rank),
            batches=batches,
            fixed_axis=fixed_axis,
            variant=self._pull.is_on,
        )

    def _predict_uncompiled(self, features: Arrays) -> Arrays:
        return self._functions.predict_uncompiled(features)

    def _drawing_at(self, moment: str, number: int = 0) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that seeds random numbers which Python code draws in its block.

        They depend on the present step and on the arguments, which `StepSeeder.drawing` explains.
        """
        return self._seeds.drawing(self.step, moment, number)

    @contextlib.contextmanager
    def _at_moment(self, moment: str, number: int) -> Iterator[None]:
        """Context manager for calling callbacks: seeds them, and rejects changes that steps ignore.

        Args:
            moment: Name of the callbacks' method.
            number: Number of the batch, for an event of an evaluation batch; otherwise 0.

        Raises:
            DefinitionError: A callback changes an attribute that a compiled step does not read
                again.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._drawing_at(moment, number))
            if self.hooks.are_of_users:
                seed = self._seeds.of_moment(self.step, moment, number)
                stack.enter_context(self._draws.in_callbacks(seed))
            if self._is_eager_only:
                advice = (
                    "Steps are compiled here, even with run_eagerly=True, and do not see the "
                    "change. Make it a weight of a layer (self.add_weight(..., trainable=False))."
                )
            else:
                advice = (
                    "A step is compiled with the values from the model file; `fit` would see this "
                    "change but no later one. Set it in the model file, or make it a weight of a "
                    "layer (self.add_weight(..., trainable=False)) or a variable of the optimizer "
                    "(self.add_variable(...)), which can change at any time. What a loss reads may "
                    "be a keras.Variable that the callback has as an attribute."
                )
            if self.step == 0 or self._is_eager_only:
                stack.enter_context(self._attributes.watched(f"a callback's {moment}()", advice))
            yield

    # --- the rest ---------------------------------------------------------------------------

    def _create_metrics(self, mode: Mode, example: Batch) -> KerasMetrics | CompiledMetrics:
        definition = self._definition
        if definition.compiled and example.labels is not None:
            features, labels = map_arrays(tf.convert_to_tensor, (example.features, example.labels))
            outputs = self._calls.outputs(features)
            try:
                return CompiledMetrics(
                    self.model, features, outputs, labels, where=str(definition.origin)
                )
            except ElasticDLError:
                raise
            except Exception as error:
                predict = self._predict_uncompiled
                if mistake := failures.out_of_range(error, [example], definition, predict):
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
            is_default=definition.has_default_input,
        )

    def _variables(self) -> dict[str, Any]:
        of_model = [*self._trainable, *self._statistics]
        return saved_variables.by_path(of_model, self.optimizer.variables)

    def _all_metrics(self) -> list[Any]:
        """Return the metrics of training, of evaluation and of the model; some may occur twice."""
        return [
            *self.training_metrics.variables.members.values(),
            *self.model.metrics,
            *self.evaluation_metrics.variables.members.values(),
        ]

    def _all_variables(self) -> list[Any]:
        """Return all variables that a step may change, including those reset for each step."""
        return [
            *self.model.variables,
            *self.optimizer.variables,
            *self._changes.own_variables,
            *(variable for metric in self._all_metrics() for variable in metric.variables),
            *self._seeds.variables,
            *self._pull.variables,
            *self._summaries.variables,
            *self.hooks.variables(),
        ]

    def _record_outside_at_first(self) -> None:
        """After the first step, check that it changed no variable outside the model.

        Later calls do nothing.

        Raises:
            DefinitionError: A variable that no checkpoint stores has changed.
        """
        if not self._recorded_outside:
            self._recorded_outside = True
            self._outside.check_unmoved()

    def _share_seeds(self, features: Arrays) -> None:
        """Let layers with the same seed draw alike, if they draw equally often in a step."""

        def call() -> None:
            with (
                self._calls.restored(),
                self._draws.replaced(),
                self._summaries.off(),
            ):
                two = map_arrays(lambda array: tf.convert_to_tensor(array[:2]), features)
                self.model(self._adapt(two), training=True)

        # The first step raises such an error, too, and names the batch.
        with contextlib.suppress(Exception):
            self._seeds.share(call)

    def _is_due(self, checks: RepeatedChecks) -> bool:
        """Return whether one of some repeated checks is due before the next batch.

        All workers make a check at the same step. If it changed the model in spite of all
        precautions, their models would still be equal.
        """
        has_callbacks = self.hooks.are_of_users
        return checks.is_due(self.step, self.hooks.epoch, has_callbacks=has_callbacks)

    def _add_moved(self, moved: Sequence[Any], *, is_again: bool) -> None:
        """Add trained weights to the variables whose changes are sent as statistics.

        Args:
            moved: Trained weights that a call of the model has set. Those that were added before
                are skipped.
            is_again: Whether contributions were already sent. Then no weight can be added, because
                that would change the layout of contributions, which is the same on all workers.

        Raises:
            DefinitionError: A weight would have to be added, and `is_again` is True.
        """
        known = {id(variable) for variable in self._calls.moved}
        new = [variable for variable in moved if id(variable) not in known]
        if new and is_again:
            raise DefinitionError(
                f"{self._definition.where('model')}: the model changes its weight {new[0].path} in "
                "some calls in training only, so workers cannot combine the changes. Change it in "
                "every call (by 0, if there is nothing to change), or in a callback, or train in "
                "one process without --global_batch_size."
            )
        if new:
            self._calls.moved += new
            self._changes = self._create_changes()
            self._functions.clear()

    def _create_changes(self) -> KerasStatistics:
        means = {*means_of(self.model), *map(id, self._calls.moved)}
        return KerasStatistics(
            [*self._statistics, *self._calls.moved], means, self._definition.where("model")
        )


def _as_addend(state: tf.Tensor) -> tf.Tensor:
    """Return a float32 number as float64, so that hundreds of them add up without rounding."""
    return tf.cast(state, tf.float64) if state.dtype.is_floating else state


def _to_numpy(states: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(np.asarray(a) for a in arrays) for name, arrays in states.items()}
