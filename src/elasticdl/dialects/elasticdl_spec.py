"""Spec dialect: converts a class that describes a model by its methods to a `ModelDefinition`.

    class MySpec(ElasticDLSpec):                 the base class is optional
        def create_model(self): ...
        def create_optimizer(self): ...
        def create_loss(self, outputs, labels): ...
        def create_metrics(self, mode, outputs, labels): ...
        def create_dataset(self, dataset, mode): ...

All methods are called on the same object of the class, so that they can share state. `define`
creates a first object, so that a mistake in the constructor is reported at once. When training
creates the model, a new object, constructed after seeding, replaces the first one.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from elasticdl.definition import MetricFunctions, Mode, ModelDefinition, no_metrics
from elasticdl.dialects.argument_order import role_of
from elasticdl.dialects.callbacks import as_callbacks, callbacks_beside
from elasticdl.dialects.class_weight import as_class_weight
from elasticdl.dialects.dialect_reader import (
    DialectReader,
    LateBoundFunction,
    call,
    locations_of,
    without_self,
)
from elasticdl.dialects.inputs import as_input, schema_of, with_schema
from elasticdl.dialects.losses import as_loss
from elasticdl.dialects.metrics import evaluation_metrics
from elasticdl.dialects.model_code import ModelCode, Symbol, location_of
from elasticdl.dialects.models import as_model_factory
from elasticdl.dialects.optimizers import as_optimizer_factory
from elasticdl.dialects.params import Params, described, signature_of
from elasticdl.dialects.unread_names import check_unread, unread_functions, unread_settings
from elasticdl.spec import ElasticDLSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NAME = "elasticdl_spec"
TITLE = "an ElasticDLSpec class"
METHODS = ("create_model", "create_optimizer", "create_loss", "create_metrics", "create_dataset")
NEEDS = f"a class with {', '.join(METHODS)}"
_OVERRIDES = {
    "create_dataset": "input_fn",
    "create_loss": "loss",
    "create_optimizer": "optimizer",
    "create_metrics": "eval_metrics_fn",
}

# Class weights and callbacks are optional, because specs may predate them.
_SETTINGS = (*METHODS, "create_callbacks")
_REPLACEMENTS = {
    "eval_metrics_fn": "create_metrics",
    "weighted_metrics_fn": "create_metrics",
    "class_weight": "class_weight",
}


def matches(model_code: ModelCode) -> bool:
    """Return whether `model_def` names an `ElasticDLSpec` class, or a file with exactly one.

    A class counts as one if it is derived from `ElasticDLSpec` or has all of its methods.
    """
    return _spec(model_code) is not None


def define(model_code: ModelCode) -> ModelDefinition:
    """Return the definition of a spec class.

    Raises:
        DefinitionError: A method is missing, or does not take the arguments that ElasticDL passes.
        UsageError: A param is unknown, missing or has the wrong type.
        UserCodeError: The constructor raised.
    """
    spec = _spec(model_code) or model_code.symbol
    params = Params(model_code.params)
    reading = DialectReader(NAME, TITLE, model_code.with_symbol(spec), _found(spec.value), params)
    _check_methods(spec, reading)
    check_unread(spec, _REPLACEMENTS, reading)
    maker = _Maker(spec, reading)
    methods = {name: _method(spec, name, maker) for name in METHODS}
    methods |= {
        name: model_code.overrides[flag]
        for name, flag in _OVERRIDES.items()
        if flag in model_code.overrides
    }
    create_model = as_model_factory(methods["create_model"], reading, before=maker.make)
    model_input = as_input(methods["create_dataset"], reading)
    read_schema = schema_of(model_code.find("data_schema"), reading)
    loss = as_loss(methods["create_loss"], reading)
    create_optimizer = as_optimizer_factory(methods["create_optimizer"], reading)
    if "eval_metrics_fn" in model_code.overrides:
        create_metrics = evaluation_metrics(methods["create_metrics"], reading)
    else:
        create_metrics = _metrics(methods["create_metrics"], reading)
    class_weight = None
    if hasattr(spec.value, "class_weight"):
        class_weight = as_class_weight(_class_weight(spec, maker), reading)
    has_callbacks = hasattr(spec.value, "create_callbacks")
    own_callbacks = _method(spec, "create_callbacks", maker) if has_callbacks else None
    callbacks = callbacks_beside(own_callbacks, reading)
    create_callbacks = as_callbacks(callbacks, reading)
    reading.params.check()
    maker.make()

    return ModelDefinition(
        origin=reading.origin,
        framework="keras",
        create_model=create_model,
        input=with_schema(model_input, read_schema),
        loss=loss,
        create_optimizer=create_optimizer,
        class_weight=class_weight,
        create_metrics=create_metrics,
        create_callbacks=create_callbacks,
        notes=lambda: [
            *unread_functions(spec, reading),
            *unread_settings(spec, "create_", _SETTINGS, reading),
        ],
        params=dict(model_code.params),
        places=locations_of(
            model=methods["create_model"],
            input=methods["create_dataset"],
            loss=methods["create_loss"],
            metrics=methods.get("create_metrics"),
            optimizer=methods["create_optimizer"],
            callbacks=callbacks,
        ),
    )


class _Maker:
    """Creates objects of the user's spec class, and keeps the newest.

    Args:
        spec: The user's class.
        reading: Reader of the user's code, which provides the params and builds error messages.

    Attributes:
        newest: The object created last, whose methods are called; None before `make`.
    """

    def __init__(self, spec: Symbol, reading: DialectReader) -> None:
        self._spec = spec
        given = reading.params.declare(spec, {"context"}, takes_all=True)
        signature = signature_of(spec)
        takes_context = "context" in signature.parameters
        if takes_context:
            given["context"] = dict(reading.model_code.context)
        self._given = given
        self.newest: Any = None

    def make(self) -> None:
        """Create an object of the user's class and keep it as `newest`."""
        self.newest = call(self._spec, **self._given)


def _spec(model_code: ModelCode) -> Symbol | None:
    if not model_code.names_a_file:
        return model_code.symbol if _is_spec(model_code.symbol.value) else None
    there = [symbol for symbol in model_code.classes() if _is_spec(symbol.value)]
    return there[0] if len(there) == 1 else None


def _is_spec(value: Any) -> bool:
    if not inspect.isclass(value):
        return False
    return issubclass(value, ElasticDLSpec) or all(
        callable(getattr(value, m, None)) for m in METHODS
    )


def _found(spec: Any) -> list[str]:
    return [name for name in METHODS if _has(spec, name)]


def _has(spec: Any, name: str) -> bool:
    method = getattr(spec, name, None)
    return callable(method) and not getattr(method, "__isabstractmethod__", False)


def _check_methods(spec: Symbol, reading: DialectReader) -> None:
    if not inspect.isclass(spec.value):
        raise reading.error(
            spec,
            f"{spec.name} is {described(spec.value)}, not a class.",
            "Pass a class that has create_model and the other methods: --model_def=FILE.CLASS",
        )
    missing = [
        name
        for name in METHODS
        if not _has(spec.value, name) and _OVERRIDES.get(name) not in reading.model_code.overrides
    ]
    if missing:
        raise reading.error(
            spec,
            f"{spec.name} lacks {', '.join(missing)}.",
            f"Add {'it' if len(missing) == 1 else 'them'}; see elasticdl.ElasticDLSpec.",
        )


def _method(spec: Symbol, name: str, maker: _Maker) -> Symbol:
    plain = getattr(spec.value, name, None)
    if plain is None:
        # An override replaces it.
        return spec
    function = inspect.getattr_static(spec.value, name)
    signature = without_self(plain) if inspect.isfunction(function) else inspect.signature(plain)
    file, line = location_of(plain) or (spec.file, spec.line)
    late = LateBoundFunction(plain, lambda: getattr(maker.newest, name), signature)
    return Symbol(f"{spec.short_name}.{name}", late, file, line)


def _class_weight(spec: Symbol, maker: _Maker) -> Symbol:
    value = inspect.getattr_static(spec.value, "class_weight")
    if callable(getattr(spec.value, "class_weight")):  # noqa: B009 - a method, bound or not
        return _method(spec, "class_weight", maker)
    return Symbol(f"{spec.short_name}.class_weight", value, spec.file, spec.line)


def _metrics(symbol: Symbol, reading: DialectReader) -> Callable[[Mode], MetricFunctions]:
    signature = signature_of(symbol)
    roles = {
        name: "mode" if name == "mode" else role_of(name)
        for name in signature.parameters
        if name == "mode" or role_of(name)
    }
    unknown = [
        p.name
        for p in signature.parameters.values()
        if p.default is p.empty
        and p.kind is p.POSITIONAL_OR_KEYWORD
        and p.name not in roles
        and not reading.params.has(p.name)
    ]
    if unknown:
        raise reading.error(
            symbol,
            f"create_metrics() has unknown arguments: {', '.join(unknown)}.",
            "Its arguments are mode, outputs, labels and, if wanted, predictions.",
        )
    params = reading.params.declare(symbol, roles)

    def create_metrics(mode: Mode) -> MetricFunctions:
        if mode is Mode.PREDICTION:
            return no_metrics(mode)

        def scalars(outputs: Any, labels: Any) -> Mapping[str, Any]:
            values = {"mode": mode, "outputs": outputs, "labels": labels}
            given = {name: values[role] for name, role in roles.items()}
            # A spec without metrics in this mode may lack a `return {}`.
            return symbol.value(**given, **params) or {}

        return MetricFunctions(scalars=scalars)

    return create_metrics
