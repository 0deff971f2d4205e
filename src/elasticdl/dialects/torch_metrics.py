"""TorchMetrics metrics in `eval_metrics_fn`, recognised by the names of their base classes.

Their `update` takes (preds, target). A metric with other argument names would silently compute a
wrong value, so it is rejected.

Callers: `metrics.py`.
"""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

from elasticdl.dialects.argument_order import role_of
from elasticdl.errors import UserCodeError, raised_at, users_traceback

if TYPE_CHECKING:
    from elasticdl.dialects.dialect_reader import DialectReader
    from elasticdl.dialects.model_code import Symbol

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def is_metric(value: Any) -> bool:
    """Return whether a value is a TorchMetrics metric, or a class of one."""
    return _descends(value, "Metric")


def is_collection(value: Any) -> bool:
    """Return whether a value is a TorchMetrics MetricCollection."""
    return not inspect.isclass(value) and _descends(value, "MetricCollection")


def as_metric(
    symbol: Symbol, name: str, value: Any, reading: DialectReader, *, shared: bool
) -> Any:
    """Return a TorchMetrics metric whose state no other caller uses.

    Args:
        symbol: The user's source of the metric.
        name: Name to report it under.
        value: The metric, or its class.
        reading: Reader of the user's code, which builds error messages.
        shared: Whether the user's code creates the metric only once; a copy of it is returned, so
            that evaluations do not share its state.

    Raises:
        DefinitionError: The model is a Keras model, or `update` does not take (preds, target).
        UserCodeError: Constructing the metric raised.
    """
    kind = value if inspect.isclass(value) else type(value)
    if reading.framework != "torch":
        raise reading.error(
            symbol,
            f"the metric {name!r} of {symbol.name} is {kind.__name__} of TorchMetrics, but the "
            "model is a Keras model.",
            "Expected a metric of Keras, or a function (labels, predictions).",
        )
    try:
        metric = value() if inspect.isclass(value) else copy.deepcopy(value) if shared else value
    except Exception as error:
        raise UserCodeError(
            f"{raised_at(error, symbol)}: creating {kind.__name__} raised:\n"
            f"{users_traceback(error)}"
        ) from error
    from elasticdl.training.torch.metric_states import (  # noqa: PLC0415 - imports torch
        unsupported_wrapper,
    )

    # Such a wrapper is rejected later, whatever the arguments of its update() are.
    if not unsupported_wrapper(metric):
        _check_arguments(symbol, name, metric, type(metric).__name__, reading)
    return metric


def _check_arguments(
    symbol: Symbol, name: str, metric: Any, kind: str, reading: DialectReader
) -> None:
    signature = inspect.signature(type(metric).update)
    parameters = [p for p in list(signature.parameters.values())[1:] if p.kind not in _VARIABLE]
    inner = [each for each in metric.children() if is_metric(each)]
    if not parameters and inner:
        # A wrapper, which passes its arguments on.
        for each in inner:
            of = f"{kind} of a {type(each).__name__}"
            _check_arguments(symbol, name, each, of, reading)
        return
    needed = [p for p in parameters if p.default is p.empty]
    roles = [role_of(parameter.name) for parameter in parameters[:2]]
    if roles == ["outputs", "labels"] and len(needed) <= 2:  # noqa: PLR2004
        return
    arguments = ", ".join(parameter.name for parameter in parameters)
    raise reading.error(
        symbol,
        f"the metric {name!r} of {symbol.name} is a {kind}, whose "
        f"update({arguments}) does not take a batch's predictions and labels by these names.",
        "Expected update(preds, target). Derive a class with such an update() that computes what "
        "that metric needs.",
    )


def _descends(value: Any, name: str) -> bool:
    kind = value if inspect.isclass(value) else type(value)
    return any(
        ancestor.__name__ == name and ancestor.__module__.partition(".")[0] == "torchmetrics"
        for ancestor in inspect.getmro(kind)
    )
