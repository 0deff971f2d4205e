"""Loads files of Keras 1 and 2 as Keras 3 models: .h5, .keras, JSON, SavedModel folders.

tf_keras is the continuation of Keras 2; only it can read these files. The model that it loads is
wrapped: the `tf.Variable`s become the values of Keras 3 variables, without a copy, and `call` calls
the model.
Therefore Keras 3 trainers, optimizers, losses and metrics work with it as with any other model.

Dropout uses random number generators, whose states are variables. These variables get the name that
Keras 3 uses for seeds, so that code that sets the seeds of a model also sets them. Other sources of
randomness cannot be seeded; a warning is logged for them.

Callers: dialects, in the process that trains.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from elasticdl.errors import MissingExtraError, ModelFileError
from elasticdl.saved_models import bounds, built_in
from elasticdl.saved_models.keras import (
    called,
    held_bytes,
    load_weights,
    naming_errors,
    weights_only,
)
from elasticdl.saved_models.scan import scan
from elasticdl.saved_models.trust import NONE, Trust
from elasticdl.saved_models.weight_limits import bounded

if TYPE_CHECKING:
    from elasticdl.saved_models.file_format import ModelFile

try:
    import tf_keras
except ModuleNotFoundError as error:
    raise MissingExtraError("tf-keras", "specs", "A model that Keras 2 saved") from error

_log = logging.getLogger("elasticdl")
# Name that Keras 3 uses for the state from which dropout draws.
_SEED = "seed_generator_state"
_DECLARE = (
    "Declare its class, so that it is rebuilt from code: custom_objects: [{key: <class>, value: "
    "<class>, path: <file>.py}]"
)
# Philox and ThreeFry, the two generators of TensorFlow.
_GENERATOR_SHAPES = ((3,), (2,))


class WrappedModel(keras.Model):
    """A tf_keras model as a Keras 3 model.

    Args:
        inner: The tf_keras model, built.
        generators: The variables that hold the states of the model's random number generators.
        others: Further variables that its computation uses and that tf_keras does not list.
        specs: Tensor specs of the inputs, which are cast to these dtypes. None: cast no inputs.
    """

    def __init__(
        self,
        inner: Any,
        generators: Iterable[Any] = (),
        others: Iterable[Any] = (),
        specs: Any = None,
    ) -> None:
        super().__init__(name=re.sub(r"\W", "_", inner.name))
        # Hidden from the variable tracking of Keras 3 and TensorFlow: they are named below.
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "specs", specs)
        names: set[str] = set()
        self.adopted = [
            *(_adopted(v, _name(v), names, trainable=True) for v in inner.trainable_variables),
            *(
                _adopted(v, _name(v), names, trainable=False)
                for v in (*inner.non_trainable_variables, *others)
            ),
            *(
                _adopted(v, f"generator_{number}.{_SEED}", names, trainable=False)
                for number, v in enumerate(generators)
            ),
        ]
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the output of the tf_keras model; add its layers' losses to this model's."""
        outputs = self.inner(_cast(inputs, self.specs), training=bool(training))
        for loss in self.inner.losses:
            self.add_loss(loss)
        return outputs

    def export(self, filepath: Path | str, **options: Any) -> None:
        """Write a SavedModel folder for serving, which tf_keras can also load and train again."""
        del options
        self.inner.save(os.fspath(filepath), save_format="tf", include_optimizer=False)


def load(
    file: ModelFile,
    weights: ModelFile | None = None,
    *,
    custom_objects: Mapping[str, Any] | None = None,
    trust: Trust = NONE,
) -> keras.Model:
    """Return the model of a Keras 1 or 2 file as a Keras 3 model, not compiled.

    Args:
        file: A whole model or an architecture.
        weights: File with the weights of an architecture. None: initialize the weights.
        custom_objects: The file's own classes and functions, by name.
        trust: Code that may run.

    Raises:
        ModelFileError: The file would run untrusted code or cannot be loaded, or a trial training
            step on zeros fails.
    """
    scan(file, known=custom_objects or (), trust=trust)
    if file.kind == "weights":
        raise ModelFileError(weights_only(file))
    # Layer names are numbered within a process, and parameters are identified by them.
    tf_keras.backend.reset_uids()
    before = tf_keras.backend.experimental.is_tf_random_generator_enabled()
    tf_keras.backend.experimental.enable_tf_random_generator()
    try:
        with bounded(tf_keras.layers.Layer, file, held_bytes(file, weights)):
            inner = _load(file, dict(custom_objects or {}), trust)
    finally:
        if not before:
            tf_keras.backend.experimental.disable_tf_random_generator()
    if weights is not None:
        load_weights(inner, file, weights)
    if not inner.built:
        raise ModelFileError(
            f"{file.path}: the model does not know the shape of its inputs, so it has no weights. "
            "Give its first layer an input_shape and save it again."
        )
    return _tried(inner, file)


def _load(file: ModelFile, objects: dict[str, Any], trust: Trust) -> Any:
    with naming_errors(file):
        if file.format == "saved_model":
            _check_variables(file)
        if file.kind == "architecture":
            return tf_keras.models.model_from_json(
                file.path.read_text(encoding="utf-8"), custom_objects=objects
            )
        if file.format == "keras":
            with called(file.path, "model.keras") as path:
                return tf_keras.models.load_model(
                    path, custom_objects=objects, compile=False, safe_mode=not trust.allow_lambda
                )
        return tf_keras.models.load_model(
            os.fspath(file.path), custom_objects=objects, compile=False
        )


def _check_variables(file: ModelFile) -> None:
    """Reject variables beyond the file's memory limit, before TensorFlow allocates them."""
    found = tf.train.load_checkpoint(os.fspath(file.path / "variables" / "variables"))
    dtypes = found.get_variable_to_dtype_map()
    total = sum(
        bounds.num_values(shape) * dtypes[name].size
        for name, shape in found.get_variable_to_shape_map().items()
    )
    bounds.check(file.path, "all that is in its folder `variables`", total, file.num_bytes)


# --- one step on zeros ---------------------------------------------------------------------------


def _tried(inner: Any, file: ModelFile) -> WrappedModel:
    """Return a model as a `WrappedModel`, after a trial training step on zeros.

    The step is traced, which finds the variables that it uses, and is run if the shapes are known.
    A model with unknown inputs is not tried. Logs a warning if the model draws random numbers that
    cannot be seeded.

    Args:
        inner: The tf_keras model.
        file: The model's file, for errors.

    Raises:
        ModelFileError: The step fails.
    """
    specs = _specs(inner)
    if specs is None:
        return WrappedModel(inner)
    as_saved = _specs(inner, as_saved=True)
    # Functions of a SavedModel take only the dtype they were saved with. numpy's zeros are float64,
    # so a float32 model is often saved for these: its layers cast them down again.
    cast_to: Any = None
    step = tf.function(lambda inputs: _step(inner, _cast(inputs, cast_to)), autograph=False)
    try:
        try:
            traced = step.get_concrete_function(specs)
        except ValueError:
            if as_saved == specs:
                raise
            cast_to = as_saved
            # Same as the constructor's `autocast`: otherwise, the model casts its inputs to float32
            # before passing them to the function that takes float64.
            inner._autocast = False  # noqa: SLF001
            traced = step.get_concrete_function(specs)
    except Exception as error:
        raise ModelFileError(_cannot_train(file, specs, error)) from error
    # By their handles: with mixed precision, the model's variables are wrapped.
    owned = {id(v.handle) for v in inner.variables}
    found = [v for v in traced.graph.variables if id(v.handle) not in owned]
    generators = [v for v in found if v.dtype == tf.int64 and tuple(v.shape) in _GENERATOR_SHAPES]
    others = [v for v in found if not any(v is generator for generator in generators)]
    if all(size is not None for spec in tf.nest.flatten(specs) for size in spec.shape[1:]):
        _make_a_step(inner, traced, specs, file)
    drawing = sorted(_operations(traced) & built_in.RANDOM_OPERATIONS)
    if drawing:
        _log.warning(
            "%s. Its training cannot be repeated or resumed bit for bit. %s.",
            _draws(file, drawing),
            _DECLARE,
        )
    return WrappedModel(inner, generators, others, cast_to)


def _step(inner: Any, inputs: Any) -> list[Any]:
    with tf.GradientTape() as tape:
        outputs = inner(inputs, training=True)
        total = tf.add_n(
            [tf.reduce_sum(tf.cast(each, tf.float32)) for each in tf.nest.flatten(outputs)]
        )
    return [
        tf.convert_to_tensor(gradient)
        for gradient in tape.gradient(total, inner.trainable_variables)
        if gradient is not None
    ]


def _cast(inputs: Any, specs: Any) -> Any:
    """Cast a model's inputs to the dtypes of their tensor specs; unchanged if `specs` is None."""
    if specs is None:
        return inputs
    return tf.nest.map_structure(lambda each, spec: tf.cast(each, spec.dtype), inputs, specs)


def _specs(inner: Any, *, as_saved: bool = False) -> Any:
    """Return the tensor specs of the inputs that a trainer will pass to a model; None if unknown.

    Args:
        inner: A tf_keras model.
        as_saved: Whether to keep the dtypes that the model was saved with, instead of replacing
            each float type by Keras' default.
    """
    saved = inner.save_spec()
    if not saved or not saved[0]:
        return None

    def given(spec: Any) -> Any:
        floats = spec.dtype.is_floating and not as_saved
        dtype = tf.as_dtype(keras.config.floatx()) if floats else spec.dtype
        return tf.TensorSpec([None, *spec.shape[1:]], dtype)

    try:
        return tf.nest.map_structure(given, saved[0][0])
    except (AttributeError, ValueError):
        # Ragged, sparse, or of unknown rank: left to the trainer.
        return None


def _make_a_step(inner: Any, traced: Any, specs: Any, file: ModelFile) -> None:
    kept = [(v, v.numpy()) for v in inner.non_trainable_variables]
    zeros = tf.nest.map_structure(lambda spec: tf.zeros([2, *spec.shape[1:]], spec.dtype), specs)
    try:
        gradients = traced(zeros)
    except Exception as error:
        if "determinism" in str(error):
            drawing = sorted(_operations(traced) & built_in.RANDOM_OPERATIONS)
            raise ModelFileError(
                f"{_draws(file, drawing)}, so its training could not be repeated or resumed.\n"
                f"  {_DECLARE}; or train with --no-deterministic."
            ) from error
        raise ModelFileError(_cannot_train(file, specs, error)) from error
    finally:
        for variable, value in kept:
            variable.assign(value)
    if inner.trainable_variables and not gradients:
        raise ModelFileError(
            f"{file.path}: no gradient reaches any of the model's "
            f"{len(inner.trainable_variables)} weights, so it cannot be trained. It may have been "
            "exported for serving: save the model itself."
        )


def _operations(traced: Any) -> set[str]:
    graph = traced.graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return {node.op for node in nodes}


def _draws(file: ModelFile, drawing: list[str]) -> str:
    return (
        f"{file.path}: the model was saved as a graph with the random operations "
        f"{', '.join(drawing)}, whose seeds cannot be set"
    )


def _cannot_train(file: ModelFile, specs: Any, error: Exception) -> str:
    saved = str(error)
    given = ", ".join(f"{s.dtype.name}{list(s.shape)}" for s in tf.nest.flatten(specs))
    line = next((each for each in saved.splitlines() if each.strip()), type(error).__name__)
    return (
        f"{file.path}: the model was loaded, but a step of it on zeros ({given}) fails: "
        f"{line[:300]}\n"
        "  If it has a class of its own, declare it: custom_objects: [{key: <class>, value: "
        "<class>, path: <file>.py}]."
    )


# --- variables -----------------------------------------------------------------------------------


def _name(variable: Any) -> str:
    return str(variable.name).removesuffix(":0")


def _adopted(variable: Any, name: str, names: set[str], *, trainable: bool) -> Any:
    """Return a Keras 3 variable that shares a tf_keras variable's memory.

    Args:
        variable: The variable of tf_keras.
        name: Wanted name; a number is added if it is taken.
        names: Names that are taken; receives the new one.
        trainable: Whether training changes the variable's value.
    """
    plain = re.sub(r"[^\w.-]", "_", name.replace("/", "."))
    unique, number = plain, 1
    while unique in names:
        number += 1
        unique = f"{plain}_{number}"
    names.add(unique)
    return keras.Variable(
        variable, dtype=variable.dtype.name, trainable=trainable, autocast=False, name=unique
    )
