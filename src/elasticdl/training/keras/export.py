"""Exports a trained Keras model for serving, so that it can be called without the user's code.

Keras' `model.export` calls a model without `training=False`, and layers that augment images treat
that as training. The served function is therefore created here, and compared with the model's
predictions before anything is written.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import textwrap
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from elasticdl.data.batch import Arrays, leaves, map_arrays
from elasticdl.errors import plain

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger("elasticdl")

KERAS_FILE = "model.keras"
SAVED_MODEL = "saved_model"
# Keras layers that call user code.
_RUNS_CODE = {"Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer"}
# Length of Keras' messages, which may contain the whole config of a model.
_MAX_SHOWN = 200
# What Keras writes before the error that kept it from creating a class again, several times if
# classes are nested.
_BEFORE_CAUSE = re.compile(r"(?:Exception encountered|Error encountered during deserialization): ")
_UNEXPECTED = re.compile(r"(\w+)\.__init__\(\) got an unexpected keyword argument")
_NOT_GIVEN = re.compile(r"(\w+)\.__init__\(\) missing \d+ required .*?argument(?:s)?: (.+)")
# Relative to the largest output, because the exported graph may be optimized differently: it keeps
# intermediate results in float32 where layers called one by one round each to half precision.
_TOLERANCE = 1e-4
_TOLERANCES = {"bfloat16": 0.05, "float16": 0.01}


@dataclass(frozen=True, eq=False)
class Example:
    """Example inputs with the model's outputs, used to export the model and to test the export.

    The inputs determine the export's signature; its outputs must equal these outputs.

    Attributes:
        inputs: Arrays, as the model takes them.
        outputs: The model's predictions, arrays.
        open_axes: Axes whose size differs from batch to batch, as pairs (index of the array in
            `inputs`, axis within one example).
    """

    inputs: Arrays
    outputs: Arrays
    open_axes: Collection[tuple[int, int]] = ()


class ExportError(Exception):
    """Raised if a model cannot be written in a format; the message gives the reason in one line."""


class _OtherError(ExportError):
    """Raised if loading a model fails for another reason than the arguments of one of its classes.

    Such failures are ignored where user code may only be missing, as a custom activation may.
    """


def export(
    model: keras.Model, folder: Path, example: Example, known: Collection[str] = ()
) -> list[str]:
    """Write `model.keras` and `saved_model/` into a folder.

    `saved_model/` can be served without the user's code. A model that does not consist of Keras'
    own layers needs its classes (`custom_objects`) to be loaded from `model.keras`, which is
    written only if it can be loaded with them here.

    Args:
        model: A built model.
        folder: An existing folder.
        example: Examples that give the export its signature, and to compare it with the model.
        known: Names of which the user knows already that they cannot be written.

    Returns:
        Names of the file and the folder written. If Keras cannot save the model, or TensorFlow
        cannot export it, the name is missing and the reason is logged, unless it is known.
    """
    written = []
    try:
        _save(model, folder / KERAS_FILE, example)
        written.append(KERAS_FILE)
    except ExportError as error:
        (folder / KERAS_FILE).unlink(missing_ok=True)
        if KERAS_FILE not in known:
            _log.warning("The model cannot be saved as %s: %s", KERAS_FILE, error)
    try:
        _write_saved_model(model, folder / SAVED_MODEL, example)
        written.append(SAVED_MODEL)
    except ExportError as error:
        if SAVED_MODEL not in known:
            _log.warning("The model cannot be exported for serving: %s", error)
    return written


def why_not_exported(model: keras.Model, example: Example) -> dict[str, str]:
    """Return file -> reason for the files that `export` would omit; write nothing."""
    reasons = {}
    try:
        _check_config(model)
    except ExportError as error:
        reasons[KERAS_FILE] = str(error)
    try:
        _serving(model, example)
    except ExportError as error:
        reasons[SAVED_MODEL] = str(error)
    return reasons


def _save(model: keras.Model, file: Path, example: Example) -> None:
    with _one_line(), _quiet():
        model.save(file)
    classes = _classes_of(model)
    if _is_described_by_layers(model):
        if classes:
            # Functions, such as a custom activation, are not among the classes and may be missing
            # here; so only an error about a class counts.
            with contextlib.suppress(_OtherError), _one_line(_OtherError), _quiet():
                keras.saving.load_model(file, classes, compile=False, safe_mode=False)
        return
    with _one_line(), _quiet():
        again = keras.saving.load_model(file, classes, compile=False)
    inputs = map_arrays(tf.convert_to_tensor, example.inputs)
    _check_same(
        lambda: again(inputs, training=False),
        example,
        _tolerance_of(model),
        "loaded from that file, it",
    )


def _check_config(model: keras.Model) -> None:
    """Check that Keras can create the model again from its config, as it does to load a file.

    Raises:
        ExportError: It cannot describe the model, or cannot create a class from its config.
    """
    with _one_line(), _quiet():
        config = keras.saving.serialize_keras_object(model)
    # A loss or an optimizer is not needed to load the model.
    config.pop("compile_config", None)
    classes, is_described = _classes_of(model), _is_described_by_layers(model)
    if is_described and not classes:
        return
    # The same exceptions count as in `_save`.
    ignored = [_OtherError] if is_described else []
    with contextlib.suppress(*ignored), _one_line(_OtherError), _quiet():
        keras.saving.deserialize_keras_object(config, classes, safe_mode=not is_described)


def _write_saved_model(model: keras.Model, folder: Path, example: Example) -> None:
    if type(model).export is not keras.Model.export:
        # A tf_keras model writes a folder that tf_keras can continue to train.
        with _one_line(), _quiet():
            model.export(folder)
        return
    serve, signature = _serving(model, example)
    archive = keras.export.ExportArchive()
    # Keras prints the endpoints; the run prints its own messages.
    with _one_line(), _quiet(), contextlib.redirect_stdout(io.StringIO()):
        archive.track(model)
        archive.add_endpoint("serve", serve, signature)
        archive.write_out(folder, verbose=False)


def _serving(model: keras.Model, example: Example) -> tuple[Callable[..., Any], list[Any]]:
    """Return the function to serve and its signature.

    Raises:
        ExportError: It cannot be compiled, or its outputs differ from the model's predictions.
    """

    def serve(inputs: Any) -> Any:
        return model(inputs, training=False)

    with _one_line(), _quiet():
        signature = _signature(model, example)
        specs = keras.tree.map_structure(
            lambda spec: tf.TensorSpec(spec.shape, spec.dtype, spec.name), signature
        )
        compiled = tf.function(serve, input_signature=specs, autograph=False)
        (asked,) = specs
        inputs = _as_asked(example.inputs, asked)
    _check_same(lambda: compiled(inputs), example, _tolerance_of(model), "without training, it")
    return serve, signature


def _signature(model: keras.Model, example: Example) -> list[Any]:
    """Return the served function's input signature: one argument, for batches of any size."""

    def of_tensor(tensor: Any) -> keras.InputSpec:
        shape = (None, *tensor.shape[1:])
        return keras.InputSpec(shape=shape, dtype=tensor.dtype, name=tensor.name)

    if isinstance(model, keras.Sequential) and model.inputs:
        return [of_tensor(tensor) for tensor in model.inputs]
    if _is_described_by_layers(model):
        return [keras.tree.map_structure(of_tensor, model.input)]
    names = iter(_names(example.inputs))
    numbers = iter(range(len(leaves(example.inputs))))

    def of_array(array: Any) -> keras.InputSpec:
        number = next(numbers)
        shape = [
            None if (number, axis) in example.open_axes else size
            for axis, size in enumerate(array.shape[1:])
        ]
        # Keras computes with float32 where NumPy uses float64, and calls all text "string".
        dtype = "float32" if array.dtype == np.float64 else array.dtype.name
        dtype = "string" if array.dtype.kind in "OSU" else dtype
        return keras.InputSpec(shape=(None, *shape), dtype=dtype, name=next(names))

    return [map_arrays(of_array, example.inputs)]


def is_of_keras_only(model: keras.Model) -> bool:
    """Return whether a model contains no user code, so that it can certainly be exported."""
    return _is_described_by_layers(model) and all(
        type(layer).__module__.startswith("keras.") and type(layer).__name__ not in _RUNS_CODE
        for layer in _layers_of(model)
    )


def _classes_of(model: keras.Model) -> dict[str, type[Any]]:
    """Return the `custom_objects` that loading a model's file requires: its own classes."""
    classes = map(type, _layers_of(model))
    return {kind.__name__: kind for kind in classes if not kind.__module__.startswith("keras.")}


def _layers_of(model: keras.Model) -> Any:
    """Return a model and all layers in it."""
    return getattr(model, "_flatten_layers")()  # noqa: B009 - no public name goes into layers


def _is_described_by_layers(model: keras.Model) -> bool:
    return isinstance(model, keras.Sequential) or type(model).__name__ == "Functional"


def _names(inputs: Arrays) -> list[str]:
    """Return a name for each array: from its key in a dict, or its position in a list."""
    if isinstance(inputs, Mapping):
        return [f"{key}{rest}" for key, value in inputs.items() for rest in _rests(value)]
    if isinstance(inputs, (list, tuple)):
        return [f"inputs_{i}{rest}" for i, value in enumerate(inputs) for rest in _rests(value)]
    return ["inputs"]


def _rests(value: Arrays) -> list[str]:
    return [f"_{name}" for name in _names(value)] if not hasattr(value, "dtype") else [""]


def _as_asked(inputs: Arrays, asked: Any) -> Any:
    """Return inputs with the types and the nesting that a functional model requires.

    Args:
        inputs: Arrays, as `Example.inputs`.
        asked: The model's input signature: a spec, or a dict or list of specs.
    """
    if not isinstance(inputs, Mapping):
        # A functional model takes a tuple or a tensor for a list, but the signature does not.
        inputs = keras.tree.pack_sequence_as(asked, keras.tree.flatten(inputs))
    elif isinstance(asked, (list, tuple)):
        inputs = [inputs[spec.name] for spec in asked]
    return keras.tree.map_structure(_as_spec, asked, inputs)


def _as_spec(spec: tf.TensorSpec, array: Any) -> tf.Tensor:
    tensor = tf.cast(tf.convert_to_tensor(array), spec.dtype)
    # As `fit`, the trainer gives a column of [n] values to an input of the shape [n, 1].
    is_column = spec.shape.rank == tensor.shape.rank + 1 and spec.shape[-1] == 1
    if is_column:
        return tensor[..., tf.newaxis]
    # As Keras does, an axis of size 1 is dropped for an input without it.
    is_longer = tensor.shape.rank == spec.shape.rank + 1 and tensor.shape[-1] == 1
    return tensor[..., 0] if is_longer else tensor


def _tolerance_of(model: keras.Model) -> float:
    """Return the relative difference that rounding alone can cause in a model's outputs."""
    types = [getattr(layer, "compute_dtype", None) for layer in _layers_of(model)]
    return max(_TOLERANCES.get(str(each), _TOLERANCE) for each in types)


def _check_same(outputs: Callable[[], Any], example: Example, tolerance: float, it: str) -> None:
    """Check that an export gives the model's outputs, unless it draws random numbers.

    Args:
        outputs: Function () -> outputs of the export for the inputs of the example.
        example: The inputs, and the outputs of the trained model.
        tolerance: Relative difference that is allowed.
        it: Subject of the error message, such as "without training, it".

    Raises:
        ExportError: It raised, or its outputs differ.
    """
    expected = [_as_float(each) for each in leaves(example.outputs)]
    found = _arrays(outputs)
    if len(found) != len(expected):
        raise ExportError(f"{it} has {len(found)} outputs, not {len(expected)}")
    for one, other in zip(found, expected, strict=True):
        if one.shape != other.shape:
            raise ExportError(f"{it} has outputs of the shape {one.shape}, not {other.shape}")
    # A layer that samples (of a variational autoencoder) gives different outputs in each call.
    if not _are_close(found, expected, tolerance) and _are_close(
        found, _arrays(outputs), tolerance
    ):
        raise ExportError(
            f"{it} gives different outputs from the trained model: does a layer keep state outside "
            "the model's variables?"
        )


def _arrays(outputs: Callable[[], Any]) -> list[np.ndarray[Any, Any]]:
    with _one_line(), _quiet():
        return [_as_float(each) for each in leaves(outputs())]


def _as_float(array: Any) -> np.ndarray[Any, Any]:
    """Return an array, in float32 if it is of half precision, which NumPy may not know."""
    found: np.ndarray[Any, Any] = np.asarray(array)
    return found.astype(np.float32) if found.dtype.name in _TOLERANCES else found


def _are_close(found: Sequence[Any], expected: Sequence[Any], tolerance: float) -> bool:
    for one, other in zip(found, expected, strict=True):
        finite = np.abs(other[np.isfinite(other)]) if other.dtype.kind == "f" else np.ones(1)
        bound = tolerance * max(1.0, float(finite.max(initial=0.0)))
        if not np.allclose(one, other, rtol=tolerance, atol=bound, equal_nan=True):
            return False
    return True


@contextlib.contextmanager
def _one_line(other: type[ExportError] = ExportError) -> Any:
    """Context manager that turns an exception into an ExportError with a one-line message.

    Args:
        other: Class of the error to raise instead, unless the exception is about the arguments of
            a user's class.
    """
    try:
        yield
    except ExportError:
        raise
    except Exception as error:
        # Keras' messages span several lines, with codes for bold text, and may contain whole
        # configs; the cause is at their end.
        cause = _BEFORE_CAUSE.split(plain(error))[-1]
        message = textwrap.shorten(cause, _MAX_SHOWN)
        advice = _advice_on_class(message)
        kind = ExportError if advice else other
        raise kind(f"{type(error).__name__}: {message}{advice}") from error


def _advice_on_class(message: str) -> str:
    """Return advice on a class that Keras cannot create from its config; "" for other errors.

    Args:
        message: Python's message about the call of the class.
    """
    if found := _UNEXPECTED.search(message):
        return (
            f". Let {found[1]}.__init__ take **kwargs and pass them on, "
            "super().__init__(**kwargs): Keras adds name, trainable and dtype to the arguments "
            "when it loads the model"
        )
    if found := _NOT_GIVEN.search(message):
        return (
            f". Return {found[2]} from {found[1]}.get_config() as well: Keras creates the class "
            "with these values when it loads the model"
        )
    return ""


@contextlib.contextmanager
def _quiet() -> Any:
    with warnings.catch_warnings():
        # Keras' own warnings about NumPy's copies and about layers that it serializes; errors are
        # reported.
        warnings.simplefilter("ignore")
        # TensorFlow logs where it has written a model, and warns of functions that are compiled
        # often: after several runs in one process, each with its own model.
        logger = logging.getLogger("tensorflow")
        level = logger.level
        logger.setLevel(max(level, logging.ERROR))
        handlers = list(logging.root.handlers)
        try:
            yield
        finally:
            logger.setLevel(level)
            # TensorFlow logs through absl, which then prints all later warnings of the process
            # in its own format.
            for added in [each for each in logging.root.handlers if each not in handlers]:
                logging.root.removeHandler(added)
