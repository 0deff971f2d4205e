"""A user's optimizer, as the definition has it: a function that returns a new one each time.

For Keras it may be a function or class, called with the params it declares, an optimizer, of
which a new one is made with the same settings, or the name of one. An optimizer of PyTorch needs
the parameters it is for, so there it is a function or class that takes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elasticdl.dialects import keras_objects
from elasticdl.dialects.params import described, signature_of
from elasticdl.dialects.reading import Reading, call, mro_has

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasticdl.dialects.reference import Symbol

_PARAMETERS = ("parameters", "params")
_TAKE_PARAMETERS = "Take the model's parameters: def optimizer(parameters, lr=0.001)."


def as_optimizer_factory(symbol: Symbol, reading: Reading) -> Callable[[], Any]:
    """Return what makes a new optimizer.

    Raises:
        DefinitionError: It is no optimizer and makes none.
        UsageError: It needs a param that is not given.
    """
    value = symbol.value
    if isinstance(value, str):
        # Looked up now, so that a misspelt name is told before any data is read.
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
                symbol, f"{symbol.name}() returned None.", "Return the optimizer it makes."
            )
        return keras_objects.optimizer(made, symbol) if isinstance(made, str) else made

    return create_optimizer


def as_torch_optimizer_factory(
    symbol: Symbol, reading: Reading
) -> Callable[[], Callable[[list[Any]], Any]]:
    """Return what returns the maker of a PyTorch optimizer, a function of a list of parameters.

    The user's is that itself, where one of its arguments is called so (`optimizer(parameters,
    lr=0.01)`, `functools.partial(torch.optim.Adam, lr=0.01)`), or returns one without them.

    Raises:
        DefinitionError: It is neither.
        UsageError: It needs a param that is not given.
    """
    if not callable(symbol.value):
        raise reading.error(
            symbol,
            f"{symbol.name} is {described(symbol.value)}, which is for no parameters, or for those "
            "of another model.",
            _TAKE_PARAMETERS,
        )
    parameters = signature_of(symbol).parameters
    takes = next((p for name, p in parameters.items() if name in _PARAMETERS), None)
    if takes is None:
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
                f"{symbol.name}({', '.join(parameters)}) does not say what {', '.join(unknown)} "
                "should be.",
                _TAKE_PARAMETERS,
            )
        return _returned_maker(symbol, reading)
    given = reading.params.declare(symbol, {takes.name})

    def make(model_parameters: list[Any]) -> Any:
        if takes.kind is takes.POSITIONAL_ONLY:
            return call(symbol, model_parameters, **given)
        return call(symbol, **{takes.name: model_parameters}, **given)

    return lambda: make


def _returned_maker(symbol: Symbol, reading: Reading) -> Callable[[], Callable[[list[Any]], Any]]:
    given = reading.params.declare(symbol)

    def create_optimizer() -> Callable[[list[Any]], Any]:
        made = call(symbol, **given)
        if not callable(made):
            raise reading.error(
                symbol,
                f"{symbol.name}() returned {described(made)}, without being given the model's "
                "parameters.",
                _TAKE_PARAMETERS,
            )
        maker: Callable[[list[Any]], Any] = made
        return maker

    return create_optimizer
