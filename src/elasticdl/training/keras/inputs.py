"""Finds how a batch's features are passed to a model.

Input functions return a dict of features. A functional model names its inputs; a subclass model
does not, and may expect the bare tensor instead of a dict with one entry. The form that fits is
found by tracing the model once on symbolic inputs, which changes no weight and no statistic.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import keras

from elasticdl.data.batch import Arrays, describe, leaves, map_arrays
from elasticdl.errors import DefinitionError, raised_at, reason
from elasticdl.training.input_words import (
    as_floats,
    how_to_change_features,
    missing_features,
    shape_of_image,
    source_of_features,
)

if TYPE_CHECKING:
    from elasticdl.definition import Origin

Adapter = Callable[[Arrays], Any]


def build(
    model: keras.Model, features: Arrays, origin: Origin, *, is_default: bool = False
) -> Adapter:
    """Build the model for the features' shapes, and find how to pass features to it.

    Args:
        model: A model; may be built already.
        features: An example batch; only shapes and dtypes matter.
        origin: Prefix of the error.
        is_default: Whether the model file has no input function, for the error.

    Returns:
        A function that converts features to the argument that the model takes.

    Raises:
        DefinitionError: The model does not accept these features.
    """
    alone = isinstance(features, Mapping) and len(features) == 1
    if isinstance(model, keras.Sequential):
        candidates: list[Adapter] = [_only_entry if alone else _as_they_are]
    elif _input_names(model) is None:
        candidates = [_as_they_are, _only_entry] if alone else [_as_they_are]
    else:
        candidates = [_functional_adapter(model, features, origin, is_default=is_default)]
    failures: list[Exception] = []
    for adapter in candidates:
        error = _failure(model, adapter, features)
        if error is None:
            return adapter
        failures.append(error)
    # The last attempt is more likely what the user meant: a tensor for a one-input model.
    error = failures[-1]
    floats = as_floats(features)
    needs_floats = floats is not None and _failure(model, candidates[-1], floats) is None
    raise DefinitionError(
        f"{raised_at(error, origin)}: "
        f"{_problem(model, error, features, source_of_features(is_default=is_default))}\n  "
        f"{_advice(model, error, features, is_default=is_default, needs_floats=needs_floats)}"
    ) from error


def _problem(model: keras.Model, error: Exception, features: Arrays, source: str) -> str:
    given = describe(features)
    if isinstance(error, KeyError):
        # Within Keras' text the key has quotes or not.
        key = reason(error).strip("'\"")
        return f"KeyError: {key!r}. The model {model.name!r} gets {source}: {given}."
    num_examples = next((len(array) for array in leaves(features) if array.ndim), 0)
    return (
        f"the model {model.name!r} cannot take {source} ({given}, of the first {num_examples} "
        f"examples): {_with_true_shape(_reason(error), features)}"
    )


def _with_true_shape(text: str, features: Arrays) -> str:
    """Return Keras' message with the features' own shape as the shape that was found.

    Keras drops or adds a last axis of size 1 before it compares shapes.
    """
    shapes = [(None, *array.shape[1:]) for array in leaves(features)]

    def corrected(found: re.Match[str]) -> str:
        shown = found.group(1)
        if shown in map(str, shapes):
            return found.group(0)
        near = [
            shape
            for shape in shapes
            if shown == str((*shape, 1)) or (shape[-1] == 1 and shown == str(shape[:-1]))
        ]
        return f"found shape={near[0]}" if near else found.group(0)

    return re.sub(r"found shape=(\(.*?\))", corrected, text)


def _reason(error: Exception) -> str:
    """Return the reason that an error states; a long list of field names in it is left out."""
    return re.sub(r"with keys \[[^\]]{100,}\]", "with these keys", reason(error))


def _failure(model: keras.Model, adapter: Adapter, features: Arrays) -> Exception | None:
    """Call the model on symbolic inputs; return what it raised, None if it takes the features."""
    try:
        with warnings.catch_warnings():
            # Keras warns about an attempt that fails; the next one may fit.
            warnings.simplefilter("ignore")
            given = map_arrays(_symbolic, adapter(features))
            given = _with_columns(model, given)
            _check_last_axis(model, given)
            model(given, training=False)
    except Exception as error:  # noqa: BLE001 - a user's `call` may raise anything
        return error
    return None


def _advice(
    model: keras.Model,
    error: Exception,
    features: Arrays,
    *,
    is_default: bool,
    needs_floats: bool,
) -> str:
    text = str(error)
    if "stateless scope" in text:
        return "Create the variable in build() or __init__ with add_weight()."
    if "unknown TensorShape" in text or "unknown rank" in text:
        return (
            "The model is built on a batch of unknown size: index with all axes, or name the axes "
            "of tf.squeeze."
        )
    if "SymbolicTensor" in text or type(error).__name__ == "OperatorNotAllowedInGraphError":
        return (
            "Its `call` asks a tensor for its numbers, but steps are compiled here, even with "
            "run_eagerly=True. Print numbers with tf.print, and decide with keras.ops.cond or "
            "keras.ops.where."
        )
    names = _input_names(model) or []
    if len(names) > 1 and not is_default and not isinstance(features, (Mapping, list, tuple)):
        return (
            f'Return features for several inputs as a dict, {{"{names[0]}": ..., ...}}, or a list. '
            "If the input function returns a tuple, it is read as (features, labels) or (features, "
            "labels, sample weights), in prediction too."
        )
    image_shape = None
    # A user's property may raise, which must not hide the error that is explained here.
    with contextlib.suppress(Exception):
        image_shape = shape_of_image(model)
    return how_to_change_features(
        "the model's first layer or its `call`",
        features,
        is_default=is_default,
        needs_floats=needs_floats,
        image_shape=image_shape,
    )


def _symbolic(array: Any) -> Any:
    # Strings are stored as objects or as bytes of one length; lookup layers accept both.
    dtype = "string" if array.dtype.kind in "OSU" else array.dtype.name
    return keras.KerasTensor((None, *array.shape[1:]), dtype=dtype)


def _functional(model: keras.Model) -> keras.Model:
    """Return the functional model inside a `Sequential` with an `Input`; else the model itself."""
    return getattr(model, "_functional", None) or model


def _expected(model: keras.Model) -> list[Any]:
    """Return the symbolic inputs of a functional model; an empty list for any other model."""
    if not _input_names(model):
        return []
    return leaves(getattr(_functional(model), "_inputs_struct", None))


def _check_last_axis(model: keras.Model, given: Any) -> None:
    """Check that the layers accept inputs such as [n, 5] where the model declares [n, 1].

    Keras reports such a mismatch for arrays, but not for the symbolic inputs that are used here.
    Layers that work along the last axis reject it; others accept it.

    Raises:
        ValueError: A layer does not take them.
    """
    tensors, expected = leaves(given), _expected(model)
    if len(expected) != len(tensors):
        return
    for tensor, wanted in zip(tensors, expected, strict=True):
        differs = len(tensor.shape) == len(wanted.shape) and wanted.shape[-1] == 1
        if differs and tensor.shape[-1] not in {1, None}:
            try:
                _functional(model).call(given, training=False)
            except ValueError as error:
                raise ValueError(
                    f"expected shape={tuple(wanted.shape)}, found shape={tuple(tensor.shape)}"
                ) from error


def _with_columns(model: keras.Model, given: Any) -> Any:
    """Return symbolic inputs, with a last axis of size 1 added where the model's input has one.

    Keras adds such an axis to real arrays, but not to symbolic inputs.
    """
    expected, tensors = _expected(model), leaves(given)
    if len(expected) != len(tensors):
        return given
    replaced = iter(
        keras.KerasTensor((*tensor.shape, 1), dtype=tensor.dtype)
        if tensor.shape != wanted.shape and (*tensor.shape, 1) == tuple(wanted.shape)
        else tensor
        for tensor, wanted in zip(tensors, expected, strict=True)
    )
    return map_arrays(lambda _: next(replaced), given)


def _as_they_are(features: Arrays) -> Any:
    return features


def _only_entry(features: Arrays) -> Any:
    return next(iter(features.values()))


def _input_names(model: keras.Model) -> list[str] | None:
    try:
        inputs = model.inputs
    except (AttributeError, ValueError):
        return None
    return [tensor.name for tensor in inputs] if inputs else None


def _keys_of_inputs(
    struct: Mapping[str, Any], names: list[str], features: Mapping[str, Any]
) -> list[str]:
    """Return the keys of features for a functional model whose inputs were given as a dict.

    Keras matches features by the keys of this dict, which may differ from the inputs' names.

    Args:
        struct: The dict: key -> input.
        names: Names of the inputs, in the order in which the model lists them.
        features: Features of an example batch.

    Returns:
        The keys, in the order of `names`; `names` if the features lack a key, or a value of the
        dict is nested.
    """
    keys = {getattr(tensor, "name", ""): key for key, tensor in struct.items()}
    if keys.keys() != set(names) or not features.keys() >= struct.keys():
        return names
    return [keys[name] for name in names]


def _functional_adapter(
    model: keras.Model, features: Arrays, origin: Origin, *, is_default: bool
) -> Adapter:
    names = _input_names(model) or []
    # It may be nested: {"a": [first, second], "b": third}.
    struct = getattr(model, "_inputs_struct", names)
    if isinstance(struct, Mapping) and isinstance(features, Mapping):
        names = _keys_of_inputs(struct, names, features)
    is_flat = not keras.tree.is_nested(struct) or (
        isinstance(struct, (list, tuple)) and not any(map(keras.tree.is_nested, struct))
    )
    if len(names) == 1 and not is_flat and len(leaves(features)) == 1:
        return lambda features: keras.tree.pack_sequence_as(struct, leaves(features))
    if not isinstance(features, Mapping):
        return _as_they_are
    if len(names) == 1 and len(features) == 1:
        return _only_entry
    if any(name not in features for name in names):
        raise DefinitionError(
            f"{origin}: the model {model.name!r} has the inputs {', '.join(names)}; "
            f"{missing_features(names, features, is_default=is_default)}\n"
            "  Name the entries of the features as the model's `Input(name=...)`."
        )
    ranks = {name: len(tensor.shape) for name, tensor in zip(names, model.inputs, strict=True)}

    def entry(features: Any, name: str) -> Any:
        """Return a feature; a last axis of size 1 is dropped for an `Input(())`, as Keras does."""
        array = features[name]
        is_number = ranks[name] == 1 and tuple(array.shape[1:]) == (1,)
        return array[:, 0] if is_number else array

    if len(names) == 1 and is_flat:
        return lambda features: entry(features, names[0])
    return lambda features: keras.tree.pack_sequence_as(
        struct, [entry(features, name) for name in names]
    )
