"""Argument order of losses and metrics: decided by the arguments' names, never by guessing.

Model files for the ElasticDL of 2019 define `loss(output, labels)`, later ones `loss(labels,
predictions)`; Keras uses `(y_true, y_pred)`. A wrong order would silently compute a different loss,
so names that do not show the order are rejected. One clear name is enough: in `loss(outputs,
masks)`, `masks` is the labels, and in `loss(labels, out)`, `out` is the outputs. But the second
name must not be a name for something else, such as `features`. `loss(input, target)`, the names of
PyTorch's own losses, means the outputs and the labels in a file for PyTorch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elasticdl.dialects.params import signature_of

if TYPE_CHECKING:
    from elasticdl.dialects.dialect_reader import DialectReader
    from elasticdl.dialects.model_code import Symbol

OUTPUTS = frozenset(
    [
        "output",
        "outputs",
        "logit",
        "logits",
        "pred",
        "preds",
        "prediction",
        "predictions",
        "y_pred",
        "y_preds",
    ]
)
LABELS = frozenset(["label", "labels", "target", "targets", "y_true"])
_NEITHER = frozenset(
    [
        "feature",
        "features",
        "input",
        "inputs",
        "mode",
        "model",
        "sample_weight",
        "sample_weights",
        "weight",
        "weights",
        "x",
    ]
)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

OutputsAndLabels = Callable[[Any, Any], Any]


def takes_outputs_and_labels(symbol: Symbol) -> bool:
    """Return whether the arguments' names show that a function takes outputs or labels.

    If so, it is a loss or metric itself; otherwise it may be a function that creates one.
    """
    return any(map(role_of, signature_of(symbol).parameters))


def by_name(
    symbol: Symbol, reading: DialectReader, *, called: OutputsAndLabels | None = None
) -> OutputsAndLabels:
    """Return a function `(outputs, labels)` that calls a user's loss or metric.

    It passes outputs and labels in the order that the names of the user's arguments show.

    Args:
        symbol: A function of outputs and labels, in either order. Its params (`--params`) are
            bound.
        reading: Reader of the user's code, which provides the params and builds error messages.
        called: What to call with these arguments, if not the function itself: a module, whose
            `forward` is the function.

    Raises:
        DefinitionError: The number of arguments is wrong, or their names do not show the order.
        UsageError: The function needs a param that has no value.
    """
    signature = signature_of(symbol)
    outputs, labels = _find(symbol, signature, reading)
    given = reading.params.declare(symbol, {outputs.name, labels.name})
    function: OutputsAndLabels = symbol.value if called is None else called
    kinds = (outputs.kind, labels.kind)
    in_order = list(signature.parameters)[:2] == [outputs.name, labels.name]
    if not given and in_order and inspect.Parameter.KEYWORD_ONLY not in kinds:
        return function
    by_place = [
        name
        for name, parameter in signature.parameters.items()
        if parameter in (outputs, labels) and parameter.kind is parameter.POSITIONAL_ONLY
    ]

    def ordered(the_outputs: Any, the_labels: Any) -> Any:
        values = {outputs.name: the_outputs, labels.name: the_labels}
        first = [values.pop(name) for name in by_place]
        return function(*first, **values, **given)

    return ordered


def _find(
    symbol: Symbol, signature: inspect.Signature, reading: DialectReader
) -> tuple[inspect.Parameter, inspect.Parameter]:
    parameters = list(signature.parameters.values())
    outputs = [p for p in parameters if role_of(p.name) == "outputs"]
    labels = [p for p in parameters if role_of(p.name) == "labels"]
    if len(outputs) == len(labels) == 1:
        return outputs[0], labels[0]
    arguments = [p for p in parameters if p.kind in _POSITIONAL]
    single = (*_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
    others = [
        p for p in parameters if p.kind in single and p.default is p.empty and not role_of(p.name)
    ]
    if len(outputs) == len(others) == 1 and not labels and _plain(others[0].name) not in _NEITHER:
        return outputs[0], others[0]
    if (
        len(labels) == len(others) == 1
        and not outputs
        and (
            _plain(others[0].name) not in {*_NEITHER, "y"} or _is_of_torch(others + labels, reading)
        )
    ):
        return others[0], labels[0]
    name = symbol.short_name
    if len(arguments) < 2 and not any(p.kind is p.VAR_POSITIONAL for p in parameters):  # noqa: PLR2004
        is_torch = reading.framework == "torch"
        called = f"{name}(outputs, labels)" if is_torch else f"{name}(labels, predictions)"
        raise reading.error(
            symbol,
            f"{name}() takes {_counted(len(arguments))}; it is called as {called}.",
            # A PyTorch model cannot be meant for the dialects of Keras.
            "Add the missing argument."
            if is_torch
            else "Add the missing argument, or specify the dialect yourself: --dialect=NAME",
        )
    role = "outputs" if len(outputs) > 1 else "labels" if len(labels) > 1 else ""
    if role:
        several = " and ".join(p.name for p in (outputs if role == "outputs" else labels))
        problem = f"{name}{signature} has two arguments with names of {role}, {several}."
    else:
        unknown = ", ".join(p.name for p in parameters if not role_of(p.name))
        problem = (
            f"{name}{signature} has ambiguous arguments: {unknown} could be the model's outputs or "
            "the labels."
        )
    raise reading.error(
        symbol,
        problem,
        f"Rename them: {name}(outputs, labels) or {name}(labels, predictions); also y_true, "
        "y_pred, logits, targets. The order does not matter.",
    )


def role_of(name: str) -> str:
    """Return `outputs` or `labels` if an argument's name denotes them, else an empty string."""
    plain = _plain(name)
    return "outputs" if plain in OUTPUTS else "labels" if plain in LABELS else ""


def _plain(name: str) -> str:
    return name.strip("_").lower()


def _is_of_torch(parameters: list[inspect.Parameter], reading: DialectReader) -> bool:
    names = [_plain(each.name) for each in parameters if each.default is each.empty]
    return reading.framework == "torch" and names == ["input", "target"]


def _counted(number: int) -> str:
    return f"{number} argument{'' if number == 1 else 's'}"
