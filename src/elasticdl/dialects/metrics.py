"""Converts a user's metrics to the `MetricFunctions` of a `ModelDefinition`.

`eval_metrics_fn(predictions, labels)` computes scalars of a batch; they are averaged over examples.
`eval_metrics_fn()` returns metrics: `{name: metric}`, or `{output: {name: metric}}` for a model
with several outputs. A metric is a Keras `Metric` (object, class or name) or a function of labels
and predictions in either order; for a PyTorch model it is such a function, or a TorchMetrics
`Metric`. A list works where Keras accepts one, and a TorchMetrics `MetricCollection` counts as the
metrics in it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from elasticdl.definition import MetricFunctions, Mode, NamedMetric, no_metrics
from elasticdl.dialects import keras_objects, torch_metrics
from elasticdl.dialects.argument_order import by_name, takes_outputs_and_labels
from elasticdl.dialects.dialect_reader import DialectReader, call, mro_has
from elasticdl.dialects.model_code import Symbol
from elasticdl.dialects.params import described


def as_metrics_factory(symbol: Symbol, reading: DialectReader) -> Callable[[], MetricFunctions]:
    """Return a function that creates new metrics at each call.

    Metrics have state, so two evaluations must not share them.

    Args:
        symbol: The user's metrics, a function that returns them, or a function of outputs and
            labels that computes their values.
        reading: Reader of the user's code, which provides the params and builds error messages.

    Raises:
        DefinitionError: The symbol does not yield metrics, or a function's arguments do not show
            their order.
        UsageError: The function needs a param that has no value.
    """
    value = symbol.value
    if not inspect.isroutine(value) and not hasattr(value, "__signature__"):
        # A value rather than a function: checked now, so that mistakes are reported before data is
        # read.
        _named(symbol, value, reading, shared=True)
        return lambda: MetricFunctions(
            named=_named(symbol, value, reading, shared=True), where=_place_of(symbol)
        )
    if takes_outputs_and_labels(symbol):
        scalars = MetricFunctions(scalars=by_name(symbol, reading), where=_place_of(symbol))
        return lambda: scalars
    given = reading.params.declare(symbol)

    def create_metrics() -> MetricFunctions:
        returned = call(symbol, **given)
        named = _named(symbol, returned, reading, shared=False)
        return MetricFunctions(named=named, where=_place_of(symbol))

    return create_metrics


def evaluation_metrics(
    symbol: Symbol | None, reading: DialectReader
) -> Callable[[Mode], MetricFunctions]:
    """Return a function `mode -> MetricFunctions`, for `ModelDefinition.create_metrics`.

    It creates the user's metrics for evaluation, and no metrics for other modes.

    Args:
        symbol: The user's `eval_metrics_fn`; None if there is none.
        reading: Reader of the user's code, which provides the params and builds error messages.
    """
    if symbol is None:
        return no_metrics
    create = as_metrics_factory(symbol, reading)
    return lambda mode: create() if mode is Mode.EVALUATION else no_metrics(mode)


def with_weighted(
    plain: Callable[[Mode], MetricFunctions],
    weighted: Callable[[Mode], MetricFunctions],
    symbol: Symbol | None,
    reading: DialectReader,
) -> Callable[[Mode], MetricFunctions]:
    """Return a function `mode -> MetricFunctions` that creates unweighted and weighted metrics.

    A weighted metric that has the name of an unweighted one is reported as `weighted_NAME`.

    Args:
        plain: Function (mode) -> metrics that ignore sample weights.
        weighted: Function (mode) -> metrics to which sample weights are applied.
        symbol: The user's source of the weighted metrics. None: return `plain`.
        reading: Reader of the user's code, which builds the error message for values of a whole
            batch, to which weights cannot be applied.
    """
    if symbol is None:
        return plain

    def create(mode: Mode) -> MetricFunctions:
        functions, further = plain(mode), weighted(mode)
        if further.scalars is not None:
            raise reading.error(
                symbol,
                f"{symbol.name} computes values of a whole batch, to which sample weights cannot "
                "be applied.",
                "Return metrics: {name: metric}, each a Keras metric or a function with one value "
                "per example.",
            )
        names = {named.name for named in functions.named}
        named = [
            replace(each, name=f"weighted_{each.name}" if each.name in names else each.name)
            for each in further.named
        ]
        marked = [replace(each, weighted=True) for each in named]
        return replace(functions, named=[*functions.named, *marked])

    return create


def _place_of(symbol: Symbol) -> str:
    return f"{symbol.file}:{symbol.line}"


def _named(
    symbol: Symbol, value: Any, reading: DialectReader, *, shared: bool
) -> tuple[NamedMetric, ...]:
    """Return the user's metrics, each with the name that it is reported under.

    Args:
        symbol: The user's source of the metrics.
        value: A metric, or a list, dict or collection of metrics.
        reading: Reader of the user's code, which provides the params and builds error messages.
        shared: Whether the user's code creates the metrics only once, as for a list at the top
            level of a file. They are then copied, so that evaluations do not share their state.

    Raises:
        DefinitionError: There is something that is not a metric of the model's framework.
    """

    def named(name: str, item: Any, inner: str = "", output: str | None = None) -> NamedMetric:
        return NamedMetric(
            f"{name}_{inner}" if inner else name,
            _metric(symbol, inner or name, item, reading, shared=shared),
            output,
            direction=keras_objects.direction(item),
        )

    if value is None:
        return ()
    if torch_metrics.is_collection(value):
        value = dict(value.items())
    if isinstance(value, Mapping):
        metrics: list[NamedMetric] = []
        for name, item in value.items():
            if torch_metrics.is_collection(item):
                metrics += [named(name, given, inner) for inner, given in item.items()]
            elif isinstance(item, Mapping):
                metrics += [named(name, given, inner, name) for inner, given in item.items()]
            else:
                metrics.append(named(name, item))
        return tuple(metrics)
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    return tuple(named(_name_of(item), item) for item in items)


def _name_of(metric: Any) -> str:
    if isinstance(metric, str):
        return metric
    given = getattr(metric, "name", None) or getattr(metric, "__name__", None)
    return str(given or type(metric).__name__)


def _metric(symbol: Symbol, name: str, value: Any, reading: DialectReader, *, shared: bool) -> Any:
    if reading.framework == "torch" and (isinstance(value, str) or mro_has(value, "Metric")):
        raise reading.error(
            symbol,
            f"the metric {name!r} of {symbol.name} is a Keras metric, but the model is a PyTorch "
            "model.",
            "Expected a function (labels, predictions) with one value per example, or a metric of "
            "TorchMetrics.",
        )
    if torch_metrics.is_metric(value):
        return torch_metrics.as_metric(symbol, name, value, reading, shared=shared)
    if isinstance(value, str):
        # Keras functions are (y_true, y_pred), the order that the definition uses.
        return keras_objects.metric(value, symbol)
    if mro_has(value, "Metric"):
        if isinstance(value, type):
            return value()
        return keras_objects.copied(value, symbol) if shared else value
    if not callable(value):
        raise reading.error(
            symbol,
            f"the metric {name!r} of {symbol.name} is {described(value)}.",
            "Expected a Keras metric or its name, or a function (labels, predictions). Values "
            "are computed by eval_metrics_fn(predictions, labels).",
        )
    function = by_name(Symbol(f"{symbol.name}[{name!r}]", value, symbol.file, symbol.line), reading)
    return lambda labels, predictions: function(predictions, labels)
