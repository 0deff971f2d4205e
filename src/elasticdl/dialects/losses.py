"""Converts a user's loss to the `loss` of a `ModelDefinition`, a function `(outputs, labels)`.

A loss may be a function with its arguments in either order; one of Keras (object, class or name) or
of PyTorch (object or function), depending on the model's framework; or, if a dialect allows it, a
function that takes no outputs or labels and returns one of these.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

from elasticdl.dialects import keras_objects
from elasticdl.dialects.argument_order import (
    OutputsAndLabels,
    by_name,
    role_of,
    takes_outputs_and_labels,
)
from elasticdl.dialects.dialect_reader import DialectReader, call, mro_has
from elasticdl.dialects.frameworks import framework_of_model, is_of_torch
from elasticdl.dialects.model_code import Symbol
from elasticdl.dialects.params import described, signature_of

# Arguments of a CTCLoss for outputs [n, T, C] and labels [n, S], and a note about them.
_WITH_LENGTHS = (
    "outputs.transpose(0, 1), labels, torch.full(outputs.shape[:1], outputs.shape[1]), "
    "torch.full(labels.shape[:1], labels.shape[1])"
)
_LENGTHS_NOTE = (
    " (for log probabilities of shape [n, T, C] and labels of shape [n, S]). If labels are padded, "
    "the last argument must have their real lengths, such as (labels != 0).sum(1) for padding "
    "with 0."
)


def as_loss(
    symbol: Symbol, reading: DialectReader, *, may_be_factory: bool = False
) -> OutputsAndLabels:
    """Return the loss as a function `(outputs, labels)`.

    Args:
        symbol: The user's loss.
        reading: Reader of the user's code, which provides the params and builds error messages.
        may_be_factory: Whether a function without arguments may return the loss.

    Raises:
        DefinitionError: It is not a loss, or its arguments' names do not show their order.
        UsageError: It needs a param that has no value.
    """
    value = symbol.value
    if reading.framework == "torch":
        return _torch_loss(symbol, reading)
    if isinstance(value, str):
        named = keras_objects.loss(value, symbol)
        return KerasLoss(lambda: named)
    if inspect.isclass(value) and mro_has(value, "Loss"):
        given = reading.params.declare(symbol)
        return KerasLoss(lambda: call(symbol, **given))
    if mro_has(value, "Loss"):
        return KerasLoss(lambda: value)
    if keras_objects.is_loss_function(value):
        wrapped = keras_objects.as_loss_object(value)
        return KerasLoss(lambda: wrapped)
    if not callable(value) or inspect.isclass(value):
        raise reading.error(
            symbol,
            f"{symbol.name} is {described(value)}, not a loss.",
            "Expected a function loss(labels, predictions), or a Keras loss or its name. For "
            "several outputs, write a function that sums their losses: 0.7 * "
            "mean_squared_error(labels['a'], predictions['a']) + 0.3 * ...",
        )
    if may_be_factory and _takes_nothing(symbol):
        return _FromFactory(symbol, reading)
    return by_name(symbol, reading)


def _torch_loss(symbol: Symbol, reading: DialectReader) -> OutputsAndLabels:
    value = symbol.value
    if not callable(value) or inspect.isclass(value):
        is_loss = inspect.isclass(value) and is_of_torch(value)
        raise reading.error(
            symbol,
            f"{symbol.name} is {described(value)}, not a loss.",
            f"Call it: {symbol.short_name} = torch.nn.{value.__name__}()"
            if is_loss
            else "Expected a function loss(labels, predictions), or a loss of PyTorch such as "
            "torch.nn.CrossEntropyLoss().",
        )
    if is_of_torch(_without_options(value)):
        # (input, target), as for nearly all PyTorch losses.
        _reject_more_arguments(symbol, reading)
        loss: OutputsAndLabels = value
        return loss
    if framework_of_model(value) == "torch":
        # Only its `forward` shows the arguments; calling the module runs its hooks, too.
        of_forward = dataclasses.replace(symbol, value=value.forward)
        return by_name(of_forward, reading, called=value)
    return by_name(symbol, reading)


def _reject_more_arguments(symbol: Symbol, reading: DialectReader) -> None:
    """Reject a PyTorch loss that takes more than outputs and labels, as MarginRankingLoss does."""
    is_module = framework_of_model(symbol.value) == "torch"
    try:
        signature = inspect.signature(symbol.value.forward if is_module else symbol.value)
    except (TypeError, ValueError):
        # Some functions of torch are built in, and have no signature.
        return
    needed = [
        p.name
        for p in signature.parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if len(needed) <= 2:  # noqa: PLR2004
        return
    function = _without_options(symbol.value)
    name = type(function).__name__ if is_module else function.__name__
    if "input_lengths" in needed:
        first, after = "Keep", _LENGTHS_NOTE
        given = _WITH_LENGTHS
    else:
        first, after = "Let the model return a tuple of outputs, keep", ""
        numbers = itertools.count()
        given = ", ".join(
            "labels" if role_of(each) == "labels" else f"outputs[{next(numbers)}]"
            for each in needed
        )
    raise reading.error(
        symbol,
        f"{symbol.name} is {name}, which takes {', '.join(needed)}, but a loss is called with the "
        "model's outputs and the labels.",
        # The user's object has options, which a new one would not have.
        f"{first} this {name} under another name (criterion = ...), and write a function that "
        f"calls it: def loss(outputs, labels): return criterion({given}){after}",
    )


def _without_options(loss: Any) -> Any:
    """Return the function in a `functools.partial` that only sets options of a loss.

    An example is `partial(cross_entropy, label_smoothing=0.1)`. Returns anything else unchanged.
    """
    sets_options = (
        isinstance(loss, functools.partial)
        and not loss.args
        and loss.keywords.keys().isdisjoint(("input", "target"))
    )
    return loss.func if sets_options else loss


class KerasLoss:
    """A Keras loss object, which applies sample weights; a `definition.WeighableLoss`.

    Args:
        create: Function () -> loss object; called once, at the first batch.
    """

    def __init__(self, create: Callable[[], Any]) -> None:
        self._create = create
        self._loss: Any = None

    def __call__(self, outputs: Any, labels: Any) -> Any:
        """Return the loss of a batch without sample weights."""
        return self.weighted(outputs, labels, None)

    def weighted(self, outputs: Any, labels: Any, weights: Any) -> Any:
        """Return the loss of a batch, with a weight for each example unless `weights` is None."""
        return self.loss(labels, outputs, sample_weight=weights)

    @property
    def loss(self) -> Any:
        """The Keras loss object."""
        if self._loss is None:
            self._loss = self._create()
        return self._loss


def _takes_nothing(symbol: Symbol) -> bool:
    required = [p for p in signature_of(symbol).parameters.values() if p.default is p.empty]
    return not takes_outputs_and_labels(symbol) and not required


class _FromFactory:
    """A loss that the user's function creates when it is first needed; a `definition.LateLoss`.

    Args:
        symbol: The user's function, which takes neither outputs nor labels.
        reading: Reader of the user's code, which provides the params and builds error messages.
    """

    def __init__(self, symbol: Symbol, reading: DialectReader) -> None:
        self._symbol = symbol
        self._reading = reading
        self._given = reading.params.declare(symbol)
        self._made: OutputsAndLabels | None = None

    def __call__(self, outputs: Any, labels: Any) -> Any:
        return self.resolved()(outputs, labels)

    def resolved(self) -> OutputsAndLabels:
        """Return the loss; the first call creates it."""
        if self._made is None:
            symbol = self._symbol
            value = call(symbol, **self._given)
            returned = Symbol(f"{symbol.name}()", value, symbol.file, symbol.line)
            self._made = as_loss(returned, self._reading)
        return self._made
