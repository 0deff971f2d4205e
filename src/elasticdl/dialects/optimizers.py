"""Converts a user's optimizer to `ModelDefinition.create_optimizer`, which creates new ones.

For Keras it may be a function or class, called with the params it declares; an optimizer, which is
copied with its settings; or the name of one. A PyTorch optimizer needs the parameters to optimize,
so for PyTorch it is a function or class that requests them by argument name:

    def optimizer(parameters): ...           a list of all parameters of the model
    def optimizer(named_parameters): ...     (name, parameter) pairs, for parameter groups by name
    def optimizer(model): ...                the model itself, for parameter groups by layer
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from elasticdl.dialects import keras_objects
from elasticdl.dialects.dialect_reader import DialectReader, call, mro_has
from elasticdl.dialects.params import described, signature_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasticdl.dialects.model_code import Symbol

    TorchOptimizerMaker = Callable[[Sequence[Any], Any], Any]

_PARAMETERS = ("parameters", "params")
_NAMED_PARAMETERS = ("named_parameters", "named_params")
_MODEL = ("model", "net", "network", "module")
_TAKEN = (*_PARAMETERS, *_NAMED_PARAMETERS, *_MODEL)
_TAKE_PARAMETERS = (
    "Accept the model's parameters: def optimizer(parameters, lr=0.001). For parameter groups, "
    "accept named_parameters ((name, parameter) pairs) or model."
)


def as_optimizer_factory(symbol: Symbol, reading: DialectReader) -> Callable[[], Any]:
    """Return a function that creates a new Keras optimizer.

    Args:
        symbol: The user's optimizer, its name, or a function that creates one.
        reading: Reader of the user's code, which provides the params and builds error messages.

    Raises:
        DefinitionError: It is neither an optimizer nor a function that returns one.
        UsageError: It needs a param that has no value.
    """
    value = symbol.value
    if isinstance(value, str):
        # Looked up now, so that a misspelt name is reported before any data is read.
        keras_objects.optimizer(value, symbol)
        return lambda: keras_objects.optimizer(value, symbol)
    if mro_has(value, "Optimizer") and not isinstance(value, type):
        return lambda: keras_objects.copied(value, symbol)
    if not callable(value):
        raise reading.error(
            symbol,
            f"{symbol.name} is {described(value)}, not an optimizer.",
            "Expected a function that returns an optimizer, or a Keras optimizer or its name.",
        )
    given = reading.params.declare(symbol)

    def create_optimizer() -> Any:
        made = call(symbol, **given)
        if made is None:
            raise reading.error(
                symbol, f"{symbol.name}() returned None.", "Return the optimizer that it creates."
            )
        _reject_class(made, symbol, reading, "learning_rate=0.001")
        return keras_objects.optimizer(made, symbol) if isinstance(made, str) else made

    return create_optimizer


def as_torch_optimizer_factory(
    symbol: Symbol, reading: DialectReader
) -> Callable[[], TorchOptimizerMaker]:
    """Return a function () -> `make(parameters, model)`; `make` creates a new optimizer.

    `make` calls the user's function if one of its arguments has a name such as `parameters`,
    `params`, `named_parameters` or `model`: `optimizer(parameters, lr=0.01)`,
    `functools.partial(torch.optim.Adam, lr=0.01)`. Otherwise the user's function is called first,
    without the model's parameters, and must return a function that takes a list of them.

    Args:
        symbol: The user's function.
        reading: Reader of the user's code, which provides the params and builds error messages.

    Raises:
        DefinitionError: The function has neither form.
        UsageError: It needs a param that has no value.
    """
    if not callable(symbol.value):
        raise reading.error(
            symbol,
            f"{symbol.name} is {described(symbol.value)}, which has no parameters, or those of "
            "another model.",
            _TAKE_PARAMETERS,
        )
    parameters = signature_of(symbol).parameters
    takes = [
        p
        for name, p in parameters.items()
        # A param may also be named `model`.
        if name in _TAKEN and not (name in _MODEL and reading.params.has(name))
    ]
    if not takes:
        unknown = [
            name
            for name, p in parameters.items()
            if p.default is p.empty
            and p.kind is p.POSITIONAL_OR_KEYWORD
            and not reading.params.has(name)
        ]
        if unknown:
            raise reading.error(
                symbol,
                f"{symbol.name}({', '.join(parameters)}) has unknown arguments: "
                f"{', '.join(unknown)}.",
                _TAKE_PARAMETERS,
            )
        return _returned_maker(symbol, reading)
    given = reading.params.declare(symbol, {p.name for p in takes})

    def make(model_parameters: Sequence[Any], model: Any) -> Any:
        taken = {}
        for name in (p.name for p in takes):
            if name in _PARAMETERS:
                taken[name] = list(model_parameters)
            elif name in _NAMED_PARAMETERS:
                names = [name for name, _ in model.named_parameters()]
                taken[name] = list(zip(names, model_parameters, strict=True))
            else:
                taken[name] = with_parameters(model, model_parameters, symbol, reading)
        by_place = [taken.pop(p.name) for p in takes if p.kind is p.POSITIONAL_ONLY]
        made = call(symbol, *by_place, **taken, **given)
        _reject_class(made, symbol, reading, f"{takes[0].name}, lr=0.001")
        return made

    return lambda: make


def _reject_class(made: Any, symbol: Symbol, reading: DialectReader, arguments: str) -> None:
    """Reject a class that a user's function returned instead of an optimizer.

    Args:
        made: What the function returned.
        symbol: The user's function.
        reading: Reader of the user's code, which builds the error message.
        arguments: Arguments to call the class with, for the advice: `parameters`.

    Raises:
        DefinitionError: `made` is a class.
    """
    if isinstance(made, type):
        raise reading.error(
            symbol,
            f"{symbol.name}() returned {described(made)}, not an optimizer.",
            f"Call it: return {made.__name__}({arguments})",
        )


def with_parameters(
    model: Any, parameters: Sequence[Any], symbol: Symbol, reading: DialectReader
) -> Any:
    """Return the model to pass to a user's optimizer function, with the given parameters in it.

    Before training, the function is tested with copies of the parameters, so it also gets a copy of
    the model. If the parameters are the model's own, the model itself is returned.

    Args:
        model: A module of PyTorch.
        parameters: The parameters, in the order of the model's own.
        symbol: The user function that receives the model; for errors.
        reading: Reader of the user's code, which builds error messages.

    Raises:
        DefinitionError: A copy is needed, and the model cannot be copied.
    """
    own = list(model.parameters())
    replaced = {id(mine): new for mine, new in zip(own, parameters, strict=True)}
    if all(replaced[id(mine)] is mine for mine in own):
        return model
    try:
        return copy.deepcopy(model, replaced)
    except Exception as error:
        raise reading.error(
            symbol,
            f"{symbol.name} is tested on a copy of the model first, but a {type(model).__name__} "
            f"cannot be copied: {type(error).__name__}: {error}",
            "Let copy.deepcopy(model) work.",
        ) from error


def _returned_maker(symbol: Symbol, reading: DialectReader) -> Callable[[], TorchOptimizerMaker]:
    given = reading.params.declare(symbol)

    def create_optimizer() -> TorchOptimizerMaker:
        made = call(symbol, **given)
        if not callable(made):
            raise reading.error(
                symbol,
                f"{symbol.name}() returned {described(made)}, but did not receive the model's "
                "parameters.",
                _TAKE_PARAMETERS,
            )
        return lambda parameters, _: made(list(parameters))

    return create_optimizer
