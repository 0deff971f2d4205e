"""Compiles and caches a trainer's functions, by the shapes of their arguments.

    batch --shapes--> axes of variable size (`sequence_lengths.py`) --> compiled function, cached
    TensorFlow cannot compile the user's code -------------------> all functions run uncompiled

A compiled function accepts any size along an axis in which batches differ, such as the length of
sequences. While a function is traced, operations that draw random numbers outside layers are
replaced by seeded ones.

TensorFlow runs the Python code of a step only once, when it traces the step. A model that requests
`run_eagerly=True` and changes attributes of Python objects in a step is therefore rejected. Without
this request, such a change happens only while the step is traced, as in `fit`. The variables
outside the model that a step uses are recorded here, so that the trainer rejects changes of them.

Callers: `trainer.py`, `split_checks.py`.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from elasticdl.data.batch import leaves, map_arrays
from elasticdl.errors import DataError, ElasticDLError, TrainingError, UserCodeError
from elasticdl.training.keras import failures
from elasticdl.training.keras.labels import NotANumpyFunctionError
from elasticdl.training.keras.sequence_lengths import Axes, Functions, Lengths, signature

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elasticdl.data.batch import Arrays, Batch
    from elasticdl.definition import ModelDefinition
    from elasticdl.training.generators import Generators
    from elasticdl.training.keras.attributes import Attributes
    from elasticdl.training.keras.python_code import PythonRandomGuard
    from elasticdl.training.keras.random_ops import RandomOpReplacer
    from elasticdl.training.keras.seeds import StepSeeder
    from elasticdl.training.keras.summaries import Summaries
    from elasticdl.training.keras.untracked_state import UntrackedVariables

_log = logging.getLogger("elasticdl")
# Tolerates rounding in any precision; code that relies on lengths causes larger differences.
_LOOSELY = 1e-2
# Errors of a model that does not take a batch.
_REFUSALS = (DataError, TrainingError, UserCodeError)
# Functions that `fit` compiles at the first validation.
_EVALUATIONS = ("evaluate", "evaluate_per_example")


@dataclass(frozen=True, eq=False)
class Watched:
    """Objects that check and replace operations while a trainer's functions are traced.

    Attributes:
        draws: Replacer of random operations outside layers.
        seeds: Seeder of all randomness of a step.
        generators: The generators that Python code draws from.
        python_code: Rejects Python calls in a compiled function that draw random numbers.
        attributes: Records the attributes of the model and the optimizer as the model file set
            them, for tracing, and detects changes.
        summaries: Decides whether a function writes points with `tf.summary`.
        outside: Checks variables that do not belong to the model; None for a model that declares
            its own variables.
        asks_for_eager: Whether the model requests `run_eagerly=True`; it is compiled nevertheless.
    """

    draws: RandomOpReplacer
    seeds: StepSeeder
    generators: Generators
    python_code: PythonRandomGuard
    attributes: Attributes
    summaries: Summaries
    outside: UntrackedVariables | None
    asks_for_eager: bool


class StepFunctions:
    """Compiles, caches and calls a trainer's functions of tensors, such as a training step.

    Args:
        definition: Definition of the model.
        example: An example batch; only its shapes and dtypes matter.
        watched: Checks and replacements while functions are traced.
        drawing: Function (name) -> context manager that seeds what Python code draws in its block;
            used for uncompiled steps.
        predict: Function (features) -> the model's outputs, computed through `call`.

    Attributes:
        is_eager: Whether functions run uncompiled.
        lengths: The axes along which batches have differed in size from the example.
    """

    def __init__(
        self,
        definition: ModelDefinition,
        example: Batch,
        watched: Watched,
        *,
        drawing: Callable[[str], contextlib.AbstractContextManager[None]],
        predict: Callable[[Arrays], Arrays],
    ) -> None:
        self._definition, self._watched = definition, watched
        self._drawing, self._predict = drawing, predict
        self._compiled = Functions()
        self._opens: bool | None = None
        self.is_eager = self._is_trial = False
        self.lengths = Lengths(*parts(example))

    def __len__(self) -> int:
        """Return the number of compiled functions."""
        return len(self._compiled)

    def clear(self) -> None:
        """Drop the compiled functions; the next calls compile them again."""
        self._compiled.clear()

    def clear_evaluations(self) -> None:
        """Drop the compiled evaluations; the next one compiles them with the present attributes."""
        self._compiled.drop(_EVALUATIONS)

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        arrays: tuple[Arrays, Arrays, Arrays],
        at: tuple[int, int],
        *,
        batches: Sequence[Batch],
        fixed_axis: int | None = None,
        variant: Any = None,
    ) -> Any:
        """Call a function, compiling it first if it is new for the arrays' shapes.

        If the user's code uses NumPy in a way that TensorFlow cannot compile, this and all later
        calls run uncompiled, with a warning.

        Args:
            name: Name of the function, for the cache and for errors.
            function: Function (features, labels, sample weights, step and rank) to call.
            arrays: Features, labels and sample weights.
            at: Number of the first step, and the rank.
            batches: The batches of these arrays, for errors.
            fixed_axis: The axis of examples, if its length may be a constant of the compiled
                function; None if it varies.
            variant: Any other value that the function depends on when it is compiled.

        Returns:
            What the function returns.

        Raises:
            DataError: A label or an id is out of range.
            TrainingError: TensorFlow failed.
            UserCodeError: User code raised.
        """
        # A signature cannot express "no labels", so an empty tuple stands for them.
        tensors = tuple(() if a is None else map_arrays(tf.convert_to_tensor, a) for a in arrays)
        moment = tf.constant(at, tf.int64)
        axes = 2 if name == "train" else 1
        asked = (
            (name, fixed_axis, variant, arrays[2] is None),
            [(np.shape(array), getattr(array, "dtype", None)) for array in leaves(arrays)],
        )
        if not self.is_eager and self._watched.summaries.must_trace_again(name):
            self._compiled.drop([name])
        try:
            if self._compiled.last is not None and self._compiled.last[0] == asked:
                return self._compiled.last[1](*tensors, moment)
            opened = self._open_axes(name, arrays, axes)
            # One function for batches of any size and length.
            fixed = None if opened else fixed_axis
            # NumPy's shapes, because TensorFlow takes longer to return them.
            shapes = tuple(
                signature(np.shape(array), number, axes, fixed, opened)
                for number, array in enumerate(leaves(arrays))
            )
            dtypes = tuple(tensor.dtype for tensor in leaves(tensors))

            def compile_() -> Callable[..., Any]:
                specs = iter(map(tf.TensorSpec, shapes, dtypes))
                return self._compile(
                    name,
                    lambda features, labels, weights, at: function(
                        features, or_none(labels), or_none(weights), at
                    ),
                    (*map_arrays(lambda _: next(specs), tensors), tf.TensorSpec([2], tf.int64)),
                )

            key = (name, fixed, variant, arrays[2] is None, shapes, dtypes)
            compiled = self._compiled.get(key, compile_)
            if not opened:
                self._compiled.last = asked, compiled
            return compiled(*tensors, moment)
        except NotANumpyFunctionError as error:
            if self.is_eager:
                raise
            self._watched.draws.check_uncompiled()
            _log.warning(
                "%s uses %s, which TensorFlow cannot compile; steps run uncompiled and slower.",
                self._definition.origin.file,
                error,
            )
            self.is_eager = True
            self._compiled.clear()
            return self.call(
                name, function, arrays, at, batches=batches, fixed_axis=fixed_axis, variant=variant
            )
        except ElasticDLError:
            raise
        except Exception as error:
            if isinstance(error, tf.errors.OpError):
                self._watched.python_code.check()
            raise failures.of_a_step(
                error,
                "trial" if self._is_trial else name,
                at[0] + 1,
                batches=batches,
                definition=self._definition,
                predict=self.predict_uncompiled,
            ) from error

    def of_tensors(
        self, name: str, function: Callable[..., Any], specs: Sequence[tf.TensorSpec]
    ) -> Callable[..., Any]:
        """Return a compiled function of tensors; it is compiled once for each name.

        Args:
            name: Name of the function, for the cache.
            function: Function of one tensor for each of `specs`; it does not take a batch.
            specs: Shapes and dtypes of the tensors.
        """
        return self._compiled.get(name, lambda: self._compile(name, function, specs))

    @contextlib.contextmanager
    def uncompiled(self) -> Iterator[None]:
        """Context manager that makes functions run uncompiled in its block.

        For functions that are called once, for which compiling would take longer than running. They
        read the same attributes as compiled ones, even if a callback has changed them since.
        """
        eager, functions = self.is_eager, self._compiled
        self.is_eager, self._compiled = True, Functions()
        try:
            with self._watched.attributes.as_in_file(runs=eager):
                yield
        finally:
            self.is_eager, self._compiled = eager, functions

    def predict_uncompiled(self, features: Arrays) -> Arrays:
        """Return the model's outputs for features, uncompiled."""
        with self.uncompiled(), self._watched.summaries.off():
            self._is_trial = True
            try:
                return self._predict(features)
            finally:
                self._is_trial = False

    def _open_axes(self, name: str, arrays: Sequence[Arrays], leading: int) -> Axes:
        """Return the axes whose size is left variable when the function for arrays is compiled.

        The result is empty if the arrays have the sizes of the example, or if the model cannot be
        compiled with axes of variable size, which the first call with other sizes determines.

        Args:
            name: Name of the function to compile.
            arrays: Features, labels and sample weights.
            leading: Number of axes before those of one example.
        """
        if self.is_eager:
            return frozenset()
        found = self.lengths.open_axes(arrays, leading)
        if not found:
            return found
        if self._opens is None:
            features = arrays[0]
            if name == "train":
                features = map_arrays(lambda array: array[0], features)
            self._opens = True
            try:
                self._opens = self._open_axes_keep_outputs(features)
            except _REFUSALS:
                # The model itself does not take features of these sizes, which the step reports.
                self._opens = None
                return frozenset()
            if not self._opens:
                _log.warning(
                    "%s: the model cannot be compiled for sequences (or images) of any length, or "
                    "would compute something else, as TimeDistributed does. A step is compiled "
                    "for each length instead, which takes seconds: pad to a few lengths.",
                    self._definition.origin.file,
                )
        return found if self._opens else frozenset()

    def _open_axes_keep_outputs(self, features: Arrays) -> bool:
        """Return whether a model compiled with axes of variable size has the same outputs.

        They are compared with those of the uncompiled model, up to rounding.

        Args:
            features: Features of a batch whose sizes differ from those of the example.

        Raises:
            DataError: The uncompiled model does not take the features; also `TrainingError` and
                `UserCodeError`.
        """
        fixed = leaves(self.predict_uncompiled(features))
        try:
            with self._watched.summaries.off():
                opened = leaves(self._predict(features))
        except _REFUSALS:
            # This is what the comparison looks for.
            return False
        return all(
            one.shape == other.shape
            and np.allclose(one, other, rtol=_LOOSELY, atol=_LOOSELY, equal_nan=True)
            for one, other in zip(fixed, opened, strict=True)
        )

    def _compile(
        self, name: str, function: Callable[..., Any], specs: Sequence[tf.TensorSpec]
    ) -> Callable[..., Any]:
        watched = self._watched
        in_evaluation = name in _EVALUATIONS

        def drawing(*arguments: Any) -> Any:
            with (
                self._drawing("step"),
                watched.draws.replaced(),
                watched.attributes.as_in_file(in_evaluation=in_evaluation, runs=True),
                watched.summaries.watched(name),
            ):
                return function(*arguments)

        def tracing(*arguments: Any) -> Any:
            watched.seeds.for_tracing()
            asks = watched.asks_for_eager
            drawn_from = watched.python_code.eager_only if asks else watched.generators
            with (
                drawn_from.used(),
                watched.draws.replaced(),
                watched.attributes.as_in_file(in_evaluation=in_evaluation),
                watched.summaries.watched(name),
                self.rejecting_attribute_changes(),
            ):
                return function(*arguments)

        if self.is_eager:
            return drawing
        # Compiled immediately. Otherwise TensorFlow would treat functions for other shapes as one
        # function that is retraced repeatedly, and warn about it.
        concrete: Callable[..., Any] = tf.function(
            tracing, input_signature=specs, autograph=False
        ).get_concrete_function()
        watched.draws.check(concrete, watched.seeds.variables)
        watched.python_code.watch(concrete)
        if watched.outside is not None:
            watched.outside.record(concrete)
        return concrete

    def rejecting_attribute_changes(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that rejects changes of the model's Python attributes.

        It does nothing unless the model requests `run_eagerly=True`. Steps are compiled even then,
        so such a change would be made only once.
        """
        if not self._watched.asks_for_eager:
            return contextlib.nullcontext()
        return self._watched.attributes.watched(
            "the model",
            "Steps are compiled here, even with run_eagerly=True or "
            "tf.config.run_functions_eagerly(True), so it would change only once. "
            "Make it a weight (self.add_weight(..., trainable=False)) and assign to it.",
            within=True,
        )


def parts(batch: Batch) -> tuple[Arrays, Arrays, Arrays]:
    """Return a batch's features, labels and sample weights; the last two may be None."""
    return batch.features, batch.labels, batch.weights


def or_none(arrays: Any) -> Any:
    """Return None for an empty tuple, which compiled functions receive in place of None.

    Return anything else unchanged.
    """
    return None if isinstance(arrays, tuple) and not arrays else arrays
