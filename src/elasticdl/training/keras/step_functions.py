"""The functions of a trainer, compiled for what they are called with.

    batch --shapes--> which axes are open (`lengths.py`) --> compiled function: found, or made now
                                                              | TensorFlow cannot compile the model
                                                              +--> all functions run uncompiled

While one is traced, randomness of no layer is replaced, what a step moves outside of the model is
refused, and code that counts in Python as well: in a compiled step it would run once.

Callers: `trainer.py`.
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
from elasticdl.training.keras.lengths import Axes, Functions, Lengths, signature

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elasticdl.data.batch import Arrays, Batch
    from elasticdl.definition import ModelDefinition
    from elasticdl.training.generators import Generators
    from elasticdl.training.keras.attributes import Attributes
    from elasticdl.training.keras.draws import Draws
    from elasticdl.training.keras.outside import Outside
    from elasticdl.training.keras.python_code import PythonCode
    from elasticdl.training.keras.seeds import Seeds

_log = logging.getLogger("elasticdl")
# Rounding, whatever the precision: code that relies on lengths is off by more.
_LOOSELY = 1e-2


@dataclass(frozen=True, eq=False)
class Watched:
    """What a trainer looks at while its functions are traced.

    Attributes:
        draws: Randomness of no layer.
        seeds: All randomness.
        generators: What Python code draws from.
        python_code: Calls of Python within a compiled function.
        attributes: Of the model and the optimizer, as the model file made them.
        outside: Variables that are none of the model's; None for a model that says itself what
            it has.
        asks_for_eager: The model asks to run uncompiled, which it does not.
    """

    draws: Draws
    seeds: Seeds
    generators: Generators
    python_code: PythonCode
    attributes: Attributes
    outside: Outside | None
    asks_for_eager: bool


class StepFunctions:
    """Calls functions of tensors, and compiles them first.

    Args:
        definition: What is trained.
        example: A batch like those to come.
        watched: What is looked at while functions are traced.
        drawing: Seeds what Python code draws in an uncompiled step.
        predict: Returns the model's outputs for features, by `call`.

    Attributes:
        is_eager: They run uncompiled.
        lengths: The axes along which batches have had other sizes than the example.
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
        self.is_eager = False
        self.lengths = Lengths(*parts(example))

    def __len__(self) -> int:
        """Return how many are compiled."""
        return len(self._compiled)

    def clear(self) -> None:
        """Drop the compiled functions; the next calls compile them again."""
        self._compiled.clear()

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
        """Call a function, compiling it for these shapes first where it is new.

        Args:
            name: Which function.
            function: Takes features, labels, sample weights, and step and slot.
            arrays: Features, labels and sample weights.
            at: Number of the first step, and the slot.
            batches: What the arrays are of, for errors.
            fixed_axis: The axis whose length may be compiled in; the one before is open.
            variant: What else the function was compiled with.

        Raises:
            DataError: A label or an id is out of range.
            TrainingError: TensorFlow could not do it.
            UserCodeError: Code of the user's raised.
        """
        # A signature has no place for "no labels": an empty tuple stands for them.
        tensors = tuple(() if a is None else map_arrays(tf.convert_to_tensor, a) for a in arrays)
        moment = tf.constant(at, tf.int64)
        axes = 2 if name == "train" else 1
        try:
            opened = self._open_axes(name, arrays, axes)
            # One function for batches of any size and length.
            fixed = None if opened else fixed_axis
            # NumPy is asked for the shapes: TensorFlow takes a while to say them.
            shapes = tuple(
                signature(np.shape(array), number, axes, fixed, opened)
                for number, array in enumerate(leaves(arrays))
            )
            dtypes = tuple(tensor.dtype for tensor in leaves(tensors))

            def compile_() -> Callable[..., Any]:
                specs = iter(map(tf.TensorSpec, shapes, dtypes))
                return self._compile(
                    lambda features, labels, weights, at: function(
                        features, or_none(labels), or_none(weights), at
                    ),
                    (*map_arrays(lambda _: next(specs), tensors), tf.TensorSpec([2], tf.int64)),
                )

            key = (name, fixed, variant, arrays[2] is None, shapes, dtypes)
            return self._compiled.get(key, compile_)(*tensors, moment)
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
                name,
                at[0] + 1,
                batches=batches,
                definition=self._definition,
                predict=self.predict_uncompiled,
            ) from error

    def of_tensors(
        self, name: str, function: Callable[..., Any], specs: Sequence[tf.TensorSpec]
    ) -> Callable[..., Any]:
        """Return a function of tensors that has nothing to do with a batch, compiled."""
        return self._compiled.get(name, lambda: self._compile(function, specs))

    @contextlib.contextmanager
    def uncompiled(self) -> Iterator[None]:
        """Call functions as they are: what is called once is not worth the time to compile it."""
        eager, functions = self.is_eager, self._compiled
        self.is_eager, self._compiled = True, Functions()
        try:
            yield
        finally:
            self.is_eager, self._compiled = eager, functions

    def predict_uncompiled(self, features: Arrays) -> Arrays:
        """Return the model's outputs for features."""
        with self.uncompiled():
            return self._predict(features)

    def _open_axes(self, name: str, arrays: Sequence[Arrays], leading: int) -> Axes:
        """Return which axes after those of the batch a function is compiled without."""
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
            opened = leaves(self._predict(features))
        except (DataError, TrainingError, UserCodeError):
            # That is what is to be found out; on its own length it raises again if it is wrong.
            return False
        fixed = leaves(self.predict_uncompiled(features))
        return all(
            one.shape == other.shape
            and np.allclose(one, other, rtol=_LOOSELY, atol=_LOOSELY, equal_nan=True)
            for one, other in zip(fixed, opened, strict=True)
        )

    def _compile(
        self, function: Callable[..., Any], specs: Sequence[tf.TensorSpec]
    ) -> Callable[..., Any]:
        watched = self._watched

        def drawing(*arguments: Any) -> Any:
            with self._drawing("step"), watched.draws.replaced(), watched.attributes.as_made():
                return function(*arguments)

        def tracing(*arguments: Any) -> Any:
            watched.seeds.for_tracing()
            asks = watched.asks_for_eager
            drawn_from = watched.python_code.eager_only if asks else watched.generators
            with (
                drawn_from.used(),
                watched.draws.replaced(),
                watched.attributes.as_made(),
                self._uncounted(),
            ):
                return function(*arguments)

        if self.is_eager:
            return drawing
        # Compiled here and now. TensorFlow would take functions made for other shapes for one
        # function that is retraced again and again, and warn of it.
        concrete: Callable[..., Any] = tf.function(
            tracing, input_signature=specs, autograph=False
        ).get_concrete_function()
        watched.draws.check(concrete, watched.seeds.variables)
        watched.python_code.watch(concrete)
        if watched.outside is not None:
            watched.outside.look_into(concrete)
        return concrete

    def _uncounted(self) -> contextlib.AbstractContextManager[None]:
        """Refuse code that counts in Python and expects to run for each step."""
        if not self._watched.asks_for_eager:
            return contextlib.nullcontext()
        return self._watched.attributes.watched(
            "the model",
            "Steps are compiled here, with run_eagerly=True as well, so that it would change once. "
            "Make it a weight (self.add_weight(..., trainable=False)) and assign to it.",
        )


def parts(batch: Batch) -> tuple[Arrays, Arrays, Arrays]:
    """Return features, labels and sample weights."""
    return batch.features, batch.labels, batch.weights


def or_none(arrays: Any) -> Any:
    """Return arrays, or None for the empty tuple that stands for none in a signature."""
    return None if isinstance(arrays, tuple) and not arrays else arrays
