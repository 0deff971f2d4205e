"""Keras class dialect: reads a model class that also has its training settings.

    class MyKerasModel(keras.Model):
        default_loss = "mse"
        def default_input(self, records): ...
        def default_optimizer(self): ...
        def default_metrics(self): ...                 # optional
        default_weighted_metrics = ["accuracy"]        # optional: sample weights count in them
        default_class_weight = {0: 1.0, 1: 5.0}        # optional
        def default_callbacks(self): ...               # optional: Keras callbacks
        def default_predictions(self, outputs): ...    # optional: the predictions to write
        default_classes = ["no", "yes"]                # optional: names of the classes
        @classmethod
        def complete_params(cls, params): ...          # optional: completes them from the data

Each setting may be an attribute, a property, a method, a static method or a plain function in the
class body. Methods are called on the model in training, except for `default_input`: it is called
on an object that is never trained, so that batches depend on the params and not on the weights.

`data_schema` and `callbacks` may also be functions beside the class, as in a file with functions.
Other optional functions of such a file are refused, because they would be ignored.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

from elasticdl.definition import MetricFunctions, Mode, ModelDefinition, no_metrics
from elasticdl.dialects.callbacks import as_callbacks, callbacks_beside
from elasticdl.dialects.class_weight import as_class_weight
from elasticdl.dialects.classes import as_classes
from elasticdl.dialects.dialect_reader import (
    DialectReader,
    LateBoundFunction,
    call,
    locations_of,
    mro_has,
    without_self,
)
from elasticdl.dialects.inputs import as_input, schema_of, with_schema
from elasticdl.dialects.losses import as_loss
from elasticdl.dialects.metrics import as_metrics_factory, evaluation_metrics, with_weighted
from elasticdl.dialects.model_code import (
    CONTRACT_FUNCTIONS,
    DEFAULTS,
    ModelCode,
    Symbol,
    location_of,
)
from elasticdl.dialects.optimizers import as_optimizer_factory
from elasticdl.dialects.params import Params, described
from elasticdl.dialects.unread_names import check_unread, unread_functions, unread_settings
from elasticdl.training.import_seed import without_counting_layers

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "keras_class"
TITLE = "a Keras class"
NEEDS = "a keras.Model class with default_input, default_loss, default_optimizer"
_FLAGS = {
    "default_input": "input_fn",
    "default_loss": "loss",
    "default_optimizer": "optimizer",
    "default_metrics": "eval_metrics_fn",
}
_REQUIRED = ("default_input", "default_loss", "default_optimizer")
_REPLACEMENTS = {
    "eval_metrics_fn": "default_metrics",
    "weighted_metrics_fn": "default_weighted_metrics",
    "class_weight": "default_class_weight",
}


def matches(model_code: ModelCode) -> bool:
    """Return whether `model_def` describes a model in this dialect, by one of two rules.

    * `model_def` names a file: exactly one `keras.Model` class in it has a `default_` attribute.
    * `model_def` names a class: it is a `keras.Model`, and it has a `default_` attribute or its
      file has no function of an ElasticDL module, such as `loss`.
    """
    return _model_class(model_code) is not None


def define(model_code: ModelCode) -> ModelDefinition:
    """Return the definition of a Keras class.

    Raises:
        DefinitionError: A setting is missing, or does not take the arguments that ElasticDL passes.
        UsageError: A param is unknown, missing or has the wrong type.
        UserCodeError: The constructor or a property raised.
    """
    model = _model_class(model_code) or model_code.symbol
    if not inspect.isclass(model.value):
        raise DialectReader(NAME, TITLE, model_code).error(
            model,
            f"{model.name} is {described(model.value)}, not a class.",
            "Pass a class derived from keras.Model: --model_def=FILE.CLASS",
        )
    found = [name for name in DEFAULTS if hasattr(model.value, name)]
    reading = DialectReader(
        NAME, TITLE, model_code.with_symbol(model), found, Params(model_code.params)
    )
    _check_complete(model, reading)
    check_unread(model, _REPLACEMENTS, reading)
    objects = _Objects(model, reading)
    pieces = {
        name: model_code.overrides.get(flag) or objects.default(name)
        for name, flag in _FLAGS.items()
        if flag in model_code.overrides or name in found
    }
    model_input = as_input(pieces["default_input"], reading)
    in_class = hasattr(model.value, "data_schema")
    schema = objects.default("data_schema") if in_class else model_code.find("data_schema")
    # A class may take its schema from its params, and have no schema without them.
    read_schema = schema_of(schema, reading, may_be_none=in_class)
    loss = as_loss(pieces["default_loss"], reading, may_be_factory=True)
    create_optimizer = as_optimizer_factory(pieces["default_optimizer"], reading)
    create_metrics: Callable[[Mode], MetricFunctions] = no_metrics
    if "eval_metrics_fn" in model_code.overrides:
        create_metrics = evaluation_metrics(pieces["default_metrics"], reading)
    elif "default_metrics" in pieces:
        create_metrics = _metrics(pieces["default_metrics"], reading)
    weighted = "default_weighted_metrics"
    if weighted in found:
        symbol = objects.default(weighted)
        create_metrics = with_weighted(create_metrics, _metrics(symbol, reading), symbol, reading)
    class_weight = None
    if "default_class_weight" in found:
        class_weight = as_class_weight(objects.default("default_class_weight"), reading)
    own_callbacks = objects.default("default_callbacks") if "default_callbacks" in found else None
    callbacks = callbacks_beside(own_callbacks, reading)
    predictions = None
    if "default_predictions" in found:
        predictions = objects.default("default_predictions")
        if not callable(predictions.value):
            raise reading.error(
                predictions,
                f"{predictions.name} is {described(predictions.value)}, not a function.",
                "It is called with the outputs of a batch and returns a dict of name and array.",
            )
    classes = objects.default("default_classes") if "default_classes" in found else None
    create_callbacks = as_callbacks(callbacks, reading)
    reading.params.check()
    objects.prepare()
    return ModelDefinition(
        origin=reading.origin,
        framework="keras",
        create_model=objects.create_model,
        input=with_schema(model_input, read_schema),
        loss=loss,
        create_optimizer=create_optimizer,
        class_weight=class_weight,
        create_metrics=create_metrics,
        create_callbacks=create_callbacks,
        predictions=None if predictions is None else predictions.value,
        classes=() if classes is None else as_classes(classes, reading),
        params=dict(model_code.params),
        complete_params=_completion(model, model_code),
        notes=lambda: [
            *unread_functions(model, reading),
            *unread_settings(model, "default_", DEFAULTS, reading),
        ],
        places=locations_of(
            model=model,
            input=pieces["default_input"],
            loss=pieces["default_loss"],
            metrics=pieces.get("default_metrics"),
            optimizer=pieces["default_optimizer"],
            callbacks=callbacks,
            classes=classes,
            predictions=predictions,
        ),
    )


class _Objects:
    """Creates objects of the user's class, and chooses the object that a method is called on.

    Methods about data, such as `default_input`, are called on an object that is not trained, other
    methods on the newest model.

    Args:
        model: The user's class.
        reading: Reader of the user's code, which provides the params and builds error messages.
    """

    def __init__(self, model: Symbol, reading: DialectReader) -> None:
        self._class = model
        self._reading = reading
        self._params = reading.params.declare(model)
        self._asked = False
        self._untrained: Any = None
        self._newest: Any = None

    def create_model(self) -> Any:
        """Create a model, on which methods such as `default_loss` are called from then on."""
        self._newest = self._made()
        return self._newest

    def prepare(self) -> None:
        """Create the object that is not trained, for properties and for methods about data.

        It is not needed, and not created, if `default` has found no property and no method.
        """
        if self._asked and self._untrained is None:
            with without_counting_layers():
                self._untrained = self._made()

    def default(self, name: str) -> Symbol:
        """Return the setting `name` of the class, in a form that needs no instance.

        A property is read at once, on the object that is not trained. A method becomes a function
        without `self`; when called, it calls the method on the right object. Other attributes are
        returned as they are.

        Raises:
            AttributeError: The class has no such attribute.
        """
        found = _static(self._class, name)
        if found is None:
            raise AttributeError(name)
        plain = found.value
        if isinstance(plain, property):
            self._asked = True
            # A property must be read to determine its type, so the params it may use are checked
            # first.
            self._reading.params.check_declared()
            self.prepare()
            read = dataclasses.replace(found, value=lambda: getattr(self._untrained, name))
            return dataclasses.replace(found, value=call(read))
        if isinstance(plain, (staticmethod, classmethod)):
            return dataclasses.replace(found, value=getattr(self._class.value, name))
        if not (inspect.isfunction(plain) and next(iter(_names(plain)), "") == "self"):
            return found
        self._asked = True
        late = LateBoundFunction(
            plain, lambda: getattr(self._object(name), name), without_self(plain)
        )
        return dataclasses.replace(found, value=late)

    def _object(self, name: str) -> Any:
        about_data = name in {"default_input", "data_schema", "default_class_weight"}
        return self._untrained if about_data or self._newest is None else self._newest

    def _made(self) -> Any:
        rest = self._reading.params.rest(self._class)
        return call(self._class, **self._params, **rest)


def _completion(model: Symbol, model_code: ModelCode) -> Any:
    """Return a function that derives missing params from the data; see `ModelDefinition`.

    The user's class method `complete_params(params)` returns this function. It computes, from
    summaries of the training table's columns, the params that the user did not give. None if the
    class has no such method, or if the user has replaced the class's input function.
    """
    found = getattr(model.value, "complete_params", None)
    # With another input function, the class does not determine the features.
    if found is None or "input_fn" in model_code.overrides:
        return None
    return call(dataclasses.replace(model, value=found), model_code.params)


def _model_class(model_code: ModelCode) -> Symbol | None:
    if not model_code.names_a_file:
        value = model_code.symbol.value
        if not (inspect.isclass(value) and mro_has(value, "Model")):
            return None
        speaks = _speaks_for_itself(value)
        in_model_file = any(model_code.find(name) for name in CONTRACT_FUNCTIONS)
        return model_code.symbol if speaks or not in_model_file else None
    there = [symbol for symbol in model_code.classes() if _speaks_for_itself(symbol.value)]
    return there[0] if len(there) == 1 else None


def _speaks_for_itself(value: Any) -> bool:
    return mro_has(value, "Model") and any(hasattr(value, name) for name in DEFAULTS)


def _check_complete(model: Symbol, reading: DialectReader) -> None:
    missing = [
        name
        for name in _REQUIRED
        if not hasattr(model.value, name) and _FLAGS[name] not in reading.model_code.overrides
    ]
    if missing:
        flags = " ".join(f"--{_FLAGS[name]}=FILE.FUNCTION" for name in missing)
        raise reading.error(
            model,
            f"{model.short_name} has no {', no '.join(missing)}.",
            f"Add what is missing, or name it: {flags}",
        )


def _static(model: Symbol, name: str) -> Symbol | None:
    """Return a class attribute as it is: a property is not evaluated; None if it is missing."""
    try:
        value = inspect.getattr_static(model.value, name)
    except AttributeError:
        return None
    full_name = f"{model.short_name}.{name}"
    inner = value.fget if isinstance(value, property) else value
    file, line = location_of(inner) or (model.file, model.line)
    return Symbol(full_name, value, file, line)


def _names(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def _metrics(symbol: Symbol, reading: DialectReader) -> Callable[[Mode], MetricFunctions]:
    create = as_metrics_factory(symbol, reading)
    return lambda mode: no_metrics(mode) if mode is Mode.PREDICTION else create()
