"""A user's loss, as the definition has it: `(outputs, labels)`.

It may be a function with its arguments in either order, a loss of Keras (object, class or name) or
of PyTorch (object or function), whichever the model is of, or, where a dialect allows it, a
function without contract arguments that returns one of these.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from elasticdl.dialects import keras_objects
from elasticdl.dialects.argument_order import (
    OutputsAndLabels,
    by_name,
    takes_outputs_and_labels,
)
from elasticdl.dialects.frameworks import framework_of_model, is_of_torch
from elasticdl.dialects.params import described, signature_of
from elasticdl.dialects.reading import Reading, call, mro_has
from elasticdl.dialects.reference import Symbol


def as_loss(symbol: Symbol, reading: Reading, *, may_be_factory: bool = False) -> OutputsAndLabels:
    """Return the loss as `(outputs, labels)`.

    Args:
        symbol: The user's loss.
        reading: For params and errors.
        may_be_factory: Whether a function without arguments may return the loss.

    Raises:
        DefinitionError: It is no loss, or its arguments' names do not tell their order.
        UsageError: It needs a param that is not given.
    """
    value = symbol.value
    if reading.framework == "torch":
        return _torch_loss(symbol, reading)
    if isinstance(value, str):
        return _keras_order(keras_objects.loss(value, symbol))
    if inspect.isclass(value) and mro_has(value, "Loss"):
        given = reading.params.declare(symbol)
        return _made_once(symbol, given)
    if mro_has(value, "Loss"):
        return _keras_order(value)
    if not callable(value) or inspect.isclass(value):
        raise reading.error(
            symbol,
            f"{symbol.name} is {described(value)}, not a loss.",
            "Expected a function loss(labels, predictions), or a Keras loss or its name.",
        )
    if may_be_factory and _takes_nothing(symbol):
        return _from_factory(symbol, reading)
    return by_name(symbol, reading)


def _torch_loss(symbol: Symbol, reading: Reading) -> OutputsAndLabels:
    value = symbol.value
    if not callable(value) or inspect.isclass(value):
        raise reading.error(
            symbol,
            f"{symbol.name} is {described(value)}, not a loss.",
            "Expected a function loss(labels, predictions), or a loss of PyTorch such as "
            "torch.nn.CrossEntropyLoss().",
        )
    if is_of_torch(value):
        # (input, target), as all of PyTorch's are.
        loss: OutputsAndLabels = value
        return loss
    if framework_of_model(value) == "torch":
        # A module of the user's: calling it says nothing of its arguments, its `forward` does.
        return by_name(dataclasses.replace(symbol, value=value.forward), reading)
    return by_name(symbol, reading)


def _keras_order(function: Any) -> OutputsAndLabels:
    def loss(outputs: Any, labels: Any) -> Any:
        return function(labels, outputs)

    return loss


def _made_once(symbol: Symbol, given: dict[str, Any]) -> OutputsAndLabels:
    made: list[Any] = []

    def loss(outputs: Any, labels: Any) -> Any:
        if not made:
            made.append(call(symbol, **given))
        return made[0](labels, outputs)

    return loss


def _takes_nothing(symbol: Symbol) -> bool:
    required = [p for p in signature_of(symbol).parameters.values() if p.default is p.empty]
    return not takes_outputs_and_labels(symbol) and not required


def _from_factory(symbol: Symbol, reading: Reading) -> OutputsAndLabels:
    given = reading.params.declare(symbol)
    made: list[OutputsAndLabels] = []

    def loss(outputs: Any, labels: Any) -> Any:
        if not made:
            returned = Symbol(f"{symbol.name}()", call(symbol, **given), symbol.file, symbol.line)
            made.append(as_loss(returned, reading))
        return made[0](outputs, labels)

    return loss
