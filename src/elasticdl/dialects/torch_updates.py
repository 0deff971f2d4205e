"""Reads settings in a PyTorch model file that change how weights are updated, such as clipping.

    def lr_scheduler(optimizer):              a scheduler of torch.optim.lr_scheduler; see
        return StepLR(optimizer, 30)          `training/torch/schedulers.py`

    gradient_clipping = 1.0                   by the norm of all gradients together
    gradient_clipping = {"value": 0.5}        each value separately
    def gradient_clipping(parameters):        with user code
        clip_grad_norm_(parameters, 1.0)

    def averaged_model(model):                averages of the weights; see
        return AveragedModel(model)           `training/torch/averages.py`

    precision = "bf16"                        autocast; "fp16" scales the loss as well

In a file with a Keras model these names have no meaning: Keras has these settings in its optimizers
and callbacks, and such files may have helpers of these names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from elasticdl.definition import GradientClipping, Precision
from elasticdl.dialects.dialect_reader import DialectReader, call
from elasticdl.dialects.params import described, signature_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.dialects.model_code import Symbol

_CLIPPINGS = (
    'Expected a number, the maximum norm of all gradients together; {"norm": 1.0}; {"value": '
    "0.5}; or a function of the parameters."
)


def as_function_of(
    what: Literal["optimizer", "model"], symbol: Symbol | None, reading: DialectReader
) -> Callable[[Any], Any] | None:
    """Return a user's function such as `lr_scheduler(optimizer)`, with its params bound.

    The result takes only the optimizer or the model. It is None if the user has no such function,
    or if the model is a Keras model.

    Args:
        what: What the function takes, for errors.
        symbol: The user's function; None if there is none.
        reading: Reader of the user's code, which provides the params and builds error messages.

    Raises:
        DefinitionError: It is not a function of one argument.
        UsageError: It needs a param that has no value.
    """
    if symbol is None or symbol.value is None or reading.framework != "torch":
        return None
    takes = _first_argument(symbol)
    if takes is None:
        takes_nothing = " that takes no argument" if callable(symbol.value) else ""
        raise reading.error(
            symbol,
            f"{symbol.name} is {described(symbol.value)}{takes_nothing}; expected a function of "
            f"the {what}.",
            f"def {symbol.short_name}({what}): ...",
        )
    given = reading.params.declare(symbol, {takes})
    return lambda value: call(symbol, value, **given)


def as_gradient_clipping(
    symbol: Symbol | None, reading: DialectReader
) -> GradientClipping | Callable[[Sequence[Any]], Any] | None:
    """Return the gradient clipping that a model file defines; None for no clipping.

    Raises:
        DefinitionError: The value is not a supported form of clipping.
        UsageError: The user's function needs a param that has no value.
    """
    if symbol is None or symbol.value is None or reading.framework != "torch":
        return None
    value = symbol.value
    if callable(value):
        takes = _first_argument(symbol)
        if takes is None:
            raise reading.error(symbol, f"{symbol.name}() takes no argument.", _CLIPPINGS)
        given = reading.params.declare(symbol, {takes})
        return lambda parameters: call(symbol, parameters, **given)
    bounds = value if isinstance(value, Mapping) else {"norm": value}
    for by in ("norm", "value"):
        if list(bounds) == [by] and _is_bound(bounds[by]):
            return GradientClipping(by, float(bounds[by]))
    raise reading.error(symbol, f"{symbol.name} is {value!r:.80}.", _CLIPPINGS)


def as_precision(symbol: Symbol | None, reading: DialectReader) -> Precision:
    """Return the number format in which a model file lets steps compute: "bf16", "fp16" or "".

    "" means the format of the weights. The result is also "" if `precision` is neither a string, a
    `torch.dtype` nor 16 or 32, because the file then uses the name for something else.

    Raises:
        DefinitionError: The precision is unknown.
    """
    if symbol is None or reading.framework != "torch":
        return ""
    # The names of Lightning and Accelerate, and those of PyTorch: `16`, `torch.bfloat16`.
    is_dtype = f"{type(symbol.value).__module__}.{type(symbol.value).__name__}" == "torch.dtype"
    is_bits = type(symbol.value) is int and symbol.value in (16, 32)
    if not (isinstance(symbol.value, str) or is_dtype or is_bits):
        return ""
    short = str(symbol.value).removeprefix("torch.").removesuffix("-mixed")
    short = short.replace("bfloat16", "bf16")
    short = {"float16": "fp16", "16": "fp16", "float32": "", "fp32": "", "32": ""}.get(short, short)
    if short not in get_args(Precision):
        raise reading.error(
            symbol,
            f"precision is {symbol.value!r}.",
            'Expected "bf16" or "fp16"; without it a step computes in the format of the weights.',
        )
    return cast("Precision", short)


def _first_argument(symbol: Symbol) -> str | None:
    """Return the name of a function's first positional argument; None if it has none."""
    if not callable(symbol.value):
        return None
    positional = (0, 1)
    parameters = signature_of(symbol).parameters.values()
    return next((p.name for p in parameters if p.kind in positional), None)


def _is_bound(value: object) -> bool:
    # NumPy numbers are `Real`, too.
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return is_number and math.isfinite(cast("float", value)) and cast("float", value) > 0
