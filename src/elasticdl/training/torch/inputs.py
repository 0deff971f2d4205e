"""Passes a batch's features to a module, according to the signature of its `forward`.

    features                     forward               called as
    an array                     (self, x)             model(x)
    {"user": ..., "item": ...}   (self, user, item)    model(user=..., item=...)
    {"image": ...}               (self, x)             model(x), else model({"image": x})
    {"user": ..., "item": ...}   (self, features)      model(features)
    {"ids": ..., "mask": ...}    (self, ids=None, ...) model(ids=..., mask=...)
    (a, b)                       (self, left, right)   model(a, b)

Entries that `forward` does not take are left out, as in a functional Keras model. An argument with
a default may be among the features of some modes only, such as a target in training.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch.nn.modules.conv import _ConvNd

from elasticdl.data.batch import Arrays, describe, leaves, map_arrays
from elasticdl.errors import DefinitionError, raised_at, users_traceback
from elasticdl.training.input_words import (
    how_to_change_features,
    missing_features,
    source_of_features,
)
from elasticdl.training.torch.failures import device_advice

if TYPE_CHECKING:
    from torch import nn

    from elasticdl.definition import Origin

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
Adapter: TypeAlias = Callable[[Arrays], Arguments]

_TAKES_NO_DICT = re.compile(r"not dict$|'dict' object|operand.*'dict'|got dict\b", re.MULTILINE)
_CHANNELS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "x[:, None]": lambda x: x[:, None],
    "np.moveaxis(x, -1, 1)": lambda x: x.movedim(-1, 1),
}
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def find_adapter(
    model: nn.Module,
    features: Arrays,
    origin: Origin,
    run: Callable[[Adapter], object],
    *,
    is_default: bool = False,
) -> Adapter:
    """Find how to pass features to a model; return a function that turns them into arguments.

    The signature of `forward` may permit several ways; the first that the model accepts is used.

    Args:
        model: The user's module.
        features: An example batch.
        origin: Prefix of the error.
        run: Function that is given an adapter, and calls the model on the example with the
            arguments that the adapter returns. It raises if the model does, and has no side
            effects.
        is_default: Whether the model file has no input function, for the error.

    Raises:
        DefinitionError: The model does not accept these features.
    """
    failures: list[Exception] = []
    candidates = _candidates(model, features, origin, is_default=is_default)
    for adapter in candidates:
        try:
            run(adapter)
        except Exception as error:  # noqa: BLE001 - a user's `forward` may raise anything
            failures.append(error)
        else:
            return adapter
    required = _required(model)
    if (
        isinstance(features, Mapping)
        and len(required) == 1
        and required[0] not in features
        and len(features) > 1
        and _TAKES_NO_DICT.search(str(failures[0]))
    ):
        raise _missing(model, required, features, origin, is_default=is_default) from failures[0]
    num_examples = next((len(array) for array in leaves(features) if array.ndim), 0)
    dtype = _dtype_it_takes(model, candidates[0], run)
    if dtype is None:
        change = how_to_change_features(
            "the model's `forward`",
            features,
            is_default=is_default,
            needs_floats=_takes_floats(features, candidates[0], run),
            with_channels=_with_channels(model, features, candidates[0], run),
        )
    else:
        change = (
            f"The model's parameters are {dtype}. Convert features in the model's `forward`: "
            f"x = x.to({dtype}). An nn.Sequential needs a module around it whose forward does."
        )
    advice = (
        f"\n  {change}"
        f"\n  The model was tried on the first {num_examples} examples. It must accept a batch of "
        "any size: the last one of an epoch may be smaller."
    )
    raise DefinitionError(
        f"{raised_at(failures[0], origin)}: the model {type(model).__name__} cannot take "
        f"{source_of_features(is_default=is_default)} ({describe(features)}):\n"
        f"{users_traceback(failures[0])}"
        f"{device_advice(failures[0]) or advice}"
    ) from failures[0]


def _dtype_it_takes(
    model: nn.Module, adapter: Adapter, run: Callable[[Adapter], object]
) -> torch.dtype | None:
    """Return the dtype of the parameters if the model accepts features converted to it.

    For advice, after the model has rejected the features. None: it does not accept them either, or
    its parameters have the default dtype or several.

    Args:
        model: The module.
        adapter: Turns features into the arguments of the model.
        run: Function that calls the model with an adapter, as for `find_adapter`.
    """
    dtypes = {each.dtype for each in model.parameters() if each.is_floating_point()}
    if len(dtypes) != 1 or dtypes == {torch.get_default_dtype()}:
        return None
    (dtype,) = dtypes

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    try:
        run(lambda tensors: adapter(map_arrays(convert, tensors)))
    except Exception:  # noqa: BLE001 - a user's `forward` may raise anything
        return None
    return dtype


def _takes_floats(features: Arrays, adapter: Adapter, run: Callable[[Adapter], object]) -> bool:
    """Return whether a model that has rejected integer features accepts them as floats.

    Args:
        features: The features; False if none are integers.
        adapter: Turns features into the arguments of the model.
        run: Function that calls the model with an adapter, as for `find_adapter`.
    """
    if not any(array.dtype.kind in "iub" for array in leaves(features)):
        return False
    try:
        run(lambda tensors: adapter(map_arrays(lambda tensor: tensor.float(), tensors)))
    except Exception:  # noqa: BLE001 - a user's `forward` may raise anything
        return False
    return True


def _with_channels(
    model: nn.Module, features: Arrays, adapter: Adapter, run: Callable[[Adapter], object]
) -> str:
    """Return how to add the axis for channels that the convolutions of a model require.

    The result is a Python expression that converts an array of features `x`; "" if none is known.
    """
    is_of_convolutions = any(isinstance(each, _ConvNd) for each in model.modules())
    if not isinstance(features, np.ndarray) or not is_of_convolutions:
        return ""
    for expression, change in _CHANNELS.items():
        try:
            run(lambda tensors, change=change: adapter(change(tensors).float()))  # type: ignore[misc]
        except Exception:  # noqa: BLE001, S112 - a user's `forward` may raise anything
            continue
        return expression if features.dtype.kind == "f" else f'{expression}.astype("float32")'
    return ""


def _required(model: nn.Module) -> list[str]:
    """Return the names of the arguments that `forward` requires."""
    return [
        p.name for p in forward_parameters(model) if p.kind in _POSITIONAL and p.default is p.empty
    ]


def forward_parameters(model: nn.Module) -> list[inspect.Parameter]:
    """Return the parameters of `forward`, also of a model that `torch.jit.script` has compiled."""
    if isinstance(model, torch.jit.ScriptModule):
        compiled: Any = model.forward
        kind, none = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
        return [
            inspect.Parameter(
                each.name, kind, default=each.default_value if each.has_default_value() else none
            )
            # The first is the module itself.
            for each in compiled.schema.arguments[1:]
        ]
    return list(inspect.signature(model.forward).parameters.values())


def _missing(
    model: nn.Module,
    required: Sequence[str],
    features: Mapping[str, Any],
    origin: Origin,
    *,
    is_default: bool,
) -> DefinitionError:
    arguments = f"{type(model).__name__}.forward takes {', '.join(required)}"
    return DefinitionError(
        f"{origin}: {arguments}; {missing_features(required, features, is_default=is_default)}\n"
        "  Name the entries of the features as the arguments of `forward`."
    )


def _candidates(
    model: nn.Module, features: Arrays, origin: Origin, *, is_default: bool
) -> Sequence[Adapter]:
    parameters = forward_parameters(model)
    required = _required(model)
    if isinstance(features, (list, tuple)):
        return [_one_an_argument if len(required) > 1 else _as_they_are]
    if not isinstance(features, Mapping):
        if len(required) > 1:
            has = "the data have" if is_default else "the input function returns"
            entries = ", ".join(f'"{name}": ...' for name in required)
            raise DefinitionError(
                f"{origin}: {type(model).__name__}.forward takes {', '.join(required)}; {has} one "
                f"array of features, {describe(features)}.\n  Features for several arguments are "
                f"a dict with their names: {{{entries}}}."
            )
        return [_as_they_are]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    takes = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    missing = [name for name in required if name not in features]
    # If no argument is required, as in models of Hugging Face, the names of the features decide.
    are_names = bool(required) or set(features) <= set(takes)
    if are_names and not missing:
        return [_by_name(None if takes_all else takes)]
    if len(required) > 1:
        raise _missing(model, required, features, origin, is_default=is_default)
    # The tensor first: a forward that expects the dict fails on it at once, but not the reverse.
    return [_only_entry, _as_they_are] if len(features) == 1 else [_as_they_are]


def _by_name(takes: Sequence[str] | None) -> Adapter:
    """Return an adapter that passes features by name.

    An input function may return other features for evaluation and prediction than for training, so
    the arguments to pass are determined for each batch.

    Args:
        takes: Names of the arguments of `forward`, in its order; None if it takes any name.
    """

    def adapt(features: Arrays) -> Arguments:
        names = features if takes is None else [name for name in takes if name in features]
        return (), {name: features[name] for name in names}

    return adapt


def _as_they_are(features: Arrays) -> Arguments:
    return (features,), {}


def _one_an_argument(features: Arrays) -> Arguments:
    return tuple(features), {}


def _only_entry(features: Arrays) -> Arguments:
    return tuple(features.values()), {}
