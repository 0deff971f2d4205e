"""Saved-model dialect: reads a saved model and a spec, a short YAML file in IBM FL's format.

    elasticdl train --spec=model.yml --data="train/*.recordio" --output=my_model

The model file is inspected before it is loaded: to find the library that wrote it, and to reject
content that would run as code (`saved_models/`). Loss, metrics and optimizer come from
`compile_model_options`, or else from the compile settings in the file; for PyTorch, from
`optimizer` and `loss_criterion`. Training starts from the weights in the file.

Loading imports a framework, which takes seconds, so it happens only when the model is created:
`define` only inspects the files.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.config_file import ConfigStruct
from elasticdl.definition import (
    MetricFunctions,
    Mode,
    ModelDefinition,
    NamedMetric,
    RecordInput,
    no_metrics,
)
from elasticdl.dialects.dialect_reader import DialectReader, locations_of
from elasticdl.dialects.inputs import as_input
from elasticdl.dialects.model_code import Symbol
from elasticdl.dialects.params import Params
from elasticdl.dialects.saved_input import BatchSignature, InputSignature, SavedInput
from elasticdl.dialects.saved_spec import SavedSpec
from elasticdl.errors import DefinitionError, ModelFileError, framework_needed
from elasticdl.saved_models import file_format, loading, trust
from elasticdl.saved_models.scan import scan

if TYPE_CHECKING:
    from elasticdl.definition import Input
    from elasticdl.dialects.model_code import ModelCode
    from elasticdl.saved_models.compile_options import CompileOptions
    from elasticdl.saved_models.file_format import ModelFile

NAME = "ibmfl_spec"
TITLE = "a saved model with a spec"
NEEDS = "a YAML file with a section `model` (elasticdl train --spec=model.yml)"
_log = logging.getLogger("elasticdl")
_DEPRECATED = {"criterion": "loss_criterion"}
# PyTorch losses that compare a row of scores with a class number.
_OF_CLASSES = ("CrossEntropyLoss", "NLLLoss")


def matches(model_code: ModelCode) -> bool:
    """Return whether `model_def` names a spec, a YAML file that describes a saved model."""
    return isinstance(model_code.symbol.value, SavedSpec)


def define(model_code: ModelCode) -> ModelDefinition:
    """Return the definition of a saved model.

    Raises:
        DefinitionError: A key, a file or a name in the spec is wrong, or the file would run code.
        UsageError: A param is unknown or has the wrong type.
    """
    spec = model_code.symbol.value
    if not isinstance(spec, SavedSpec):
        raise DefinitionError(
            f"{model_code.symbol}: {model_code.symbol.name} is not a spec of a saved model. Pass "
            "its YAML file: --spec=model.yml"
        )
    model_code = replace(model_code, params={**spec.params, **model_code.params})
    params = Params(model_code.params)
    reading = DialectReader(NAME, TITLE, model_code, params=params, framework=spec.library)
    kind = _SavedKeras if spec.library == "keras" else _SavedTorch
    saved = kind(spec, model_code, params.declare(_rate_symbol(model_code)).get("learning_rate"))
    batches = saved.input(reading)
    params.check()
    return saved.definition(reading, batches)


def _rate_symbol(model_code: ModelCode) -> Symbol:
    def optimizer(learning_rate: float | None = None) -> None:
        """Stand in for a user's function whose signature declares `learning_rate`; never called."""

    return Symbol("optimizer", optimizer, model_code.symbol.file, model_code.symbol.line)


class _Saved(ABC):
    """A saved model: the content of its files and the resulting definition.

    Args:
        spec: The spec, which names the files.
        model_code: The code that the spec names.
        learning_rate: Learning rate of the optimizer. None: that of the spec or the file.

    Raises:
        DefinitionError: A file is missing, is not a model, or would run code.
    """

    framework = "keras"

    def __init__(self, spec: SavedSpec, model_code: ModelCode, learning_rate: float | None) -> None:
        self._saved_spec = spec
        self._spec = spec.spec
        self._section = spec.section
        self._learning_rate = learning_rate
        self._objects = {name: symbol.value for name, symbol in model_code.objects.items()}
        self._trust = trust.of(_plain(spec.section.get("trust")), spec.section.where("trust"))
        self._files = {key: self._identify(key, path) for key, path in spec.files.items()}
        self._main = self._files.get("model_definition") or self._files["model_architecture"]
        self._weights = self._files.get("model_weights")
        self._check_library(spec)
        self.trust_used = scan(self._main, known=self._objects, trust=self._trust)

    def load(self) -> Any:
        """Load the model with the weights of its file, not compiled."""
        return loading.load(
            self._main, self._weights, custom_objects=self._objects, trust=self._trust
        )

    def input(self, reading: DialectReader) -> Input:
        """Return the `input` of the model's definition.

        It is the user's `input_fn` if there is one. Otherwise, a `SavedInput` fits records to the
        shapes of the model's inputs.
        """
        own = reading.model_code.overrides.get("input_fn")
        if own is not None:
            return as_input(own, reading)

        def input_fn(
            records: Sequence[Any],
            mode: Mode,
            *,
            features: Sequence[str] | None = None,
            label: str | None = None,
            shape: Sequence[int] | None = None,
            one_hot: bool | None = None,
        ) -> Any:
            """Stand in for a user's function whose signature declares the params of `SavedInput`.

            It is never called.
            """

        where = reading.model_code.symbol
        symbol = Symbol("input_fn", input_fn, where.file, where.line)
        given = reading.params.declare(symbol, {"records", "mode"})
        return RecordInput(SavedInput(self.taken, str(where), **given), takes_mode=True)

    def taken(self) -> BatchSignature:
        """Return the form of the batches that the model takes: its inputs and its labels."""
        return self._taken

    @property
    @abstractmethod
    def _taken(self) -> BatchSignature:
        """The form of the batches that the model takes: its inputs and its labels."""

    @abstractmethod
    def definition(self, reading: DialectReader, batches: Input) -> ModelDefinition:
        """Return the definition of the saved model.

        Args:
            reading: Reader of the user's code, which builds error messages.
            batches: How records become batches, as returned by the method `input`. It becomes the
                definition's attribute `input`.
        """

    def _identify(self, key: str, path: Any) -> ModelFile:
        try:
            return file_format.identify(path)
        except ModelFileError as error:
            raise ModelFileError(f"{self._spec.where(key)}: {key}: {error}") from error

    def _check_library(self, spec: SavedSpec) -> None:
        library = self._main.library
        is_torch = library == "torch"
        if library is not None and is_torch != (spec.library == "torch"):
            wanted = "PytorchFLModel" if is_torch else "KerasFLModel or TensorFlowFLModel"
            raise DefinitionError(
                f"{self._section.where('name')}: name is {self._section.get('name')}, but "
                f"{self._main} belongs to another library. Expected name: {wanted}"
            )


class _SavedKeras(_Saved):
    """A model saved by any version of Keras; Keras 3 trains it."""

    framework = "keras"

    def definition(self, reading: DialectReader, batches: Input) -> ModelDefinition:
        return ModelDefinition(
            origin=reading.origin,
            framework=self.framework,
            create_model=self.load,
            input=batches,
            loss=self._loss,
            create_optimizer=self._create_optimizer,
            create_metrics=self._create_metrics,
            params=dict(reading.model_code.params),
            places=locations_of(input=reading.model_code.overrides.get("input_fn")),
            trust_used=[str(use) for use in self.trust_used],
            notes=self._notes,
        )

    def _notes(self) -> Sequence[str]:
        """Return notes for the user on the optimizer, the loss and the form of the labels."""
        options = self._options
        found = [f"Trained with {options.description}{self._own_rate}."]
        if options.hardly_learns and self._learning_rate is None:
            found.append(
                "Adadelta hardly changes the weights with so small a learning rate; Keras 2.2.4 "
                'used 1.0: --params="learning_rate=1.0"'
            )
        if options.own_loss and self._taken.one_hot:
            found.append(
                f"Labels become one-hot rows of {self._taken.num_classes}: {options.own_loss} does "
                "not accept class numbers."
            )
        return found

    @cached_property
    def _options(self) -> CompileOptions:
        with framework_needed(f"{self._spec.where(self._saved_spec.options_key)}: a Keras model"):
            from elasticdl.saved_models import compile_options  # noqa: PLC0415 - imports Keras

        return compile_options.resolve(
            self._given,
            self._main.training_config,
            custom_objects=self._objects,
            where=self._spec.where(self._saved_spec.options_key),
        )

    @property
    def _given(self) -> Mapping[str, Any] | None:
        return self._saved_spec.options

    @property
    def _own_rate(self) -> str:
        rate = self._learning_rate
        return "" if rate is None else f"; learning rate {rate:g} instead (from --params)"

    def _loss(self, outputs: Any, labels: Any) -> Any:
        return self._options.loss(outputs, labels)

    def _create_optimizer(self) -> Any:
        optimizer = self._options.create_optimizer()
        if self._learning_rate is not None:
            optimizer.learning_rate = self._learning_rate
        return optimizer

    def _create_metrics(self, mode: Mode) -> MetricFunctions:
        if mode is Mode.PREDICTION:
            return no_metrics(mode)
        made = self._options.create_metrics()
        return MetricFunctions(named=[NamedMetric(name, each) for name, each in made.items()])

    @cached_property
    def _taken(self) -> BatchSignature:
        model = self.load()
        inner = getattr(model, "inner", model)
        inputs = [
            InputSignature(
                str(tensor.name).partition(":")[0],
                tuple(None if axis is None else int(axis) for axis in tensor.shape[1:]),
                getattr(tensor.dtype, "name", str(tensor.dtype)),
            )
            for tensor in _symbolic(inner, "inputs") or _saved_inputs(inner)
        ]
        scores = _scores(model, inputs)
        return BatchSignature(
            inputs or [InputSignature("input", None)],
            num_classes=scores,
            one_hot=scores > 0 and self._takes_one_hot(scores),
        )

    def _takes_one_hot(self, num_classes: int) -> bool:
        """Return whether the loss expects one-hot labels; a user's loss is tested by calling it.

        Args:
            num_classes: Number of the model's scores per example.
        """
        if not self._options.own_loss:
            return _is_categorical(self._given, self._main.training_config)
        from elasticdl.saved_models import compile_options  # noqa: PLC0415 - imports Keras

        return num_classes > 1 and compile_options.takes_one_hot(self._options.loss, num_classes)


class _SavedTorch(_Saved):
    """A PyTorch module, with the optimizer and the loss that the spec names."""

    framework = "torch"

    def definition(self, reading: DialectReader, batches: Input) -> ModelDefinition:
        with framework_needed(f"{self._section.where('name')}: a PyTorch model"):
            from elasticdl.saved_models import torch  # noqa: PLC0415 - imports PyTorch

        for old, new in _DEPRECATED.items():
            if old in self._spec:
                _log.warning("%s: %s is now called %s.", self._spec.where(old), old, new)
        key = "loss_criterion" if "loss_criterion" in self._spec else "criterion"
        loss_name, loss_arguments = self._named(key, "nn.NLLLoss")
        name, arguments = self._named("optimizer", "optim.Adam")
        if self._learning_rate is not None:
            arguments = {**arguments, "lr": self._learning_rate}
        made = torch.optimizer(name, arguments, where=self._spec.where("optimizer"))
        loss = torch.loss(loss_name, loss_arguments, where=self._spec.where(key))
        of_classes = type(loss).__name__ in _OF_CLASSES
        return ModelDefinition(
            origin=reading.origin,
            framework=self.framework,
            create_model=self.load,
            input=batches,
            loss=loss if of_classes else _like_outputs(loss),
            create_optimizer=lambda: made.create,
            create_metrics=_accuracy if of_classes else no_metrics,
            params=dict(reading.model_code.params),
            places=locations_of(input=reading.model_code.overrides.get("input_fn")),
            trust_used=[str(use) for use in self.trust_used],
            notes=lambda: [f"Trained with {made.description}; loss {loss_name}."],
        )

    def _named(self, key: str, example: str) -> tuple[str, Mapping[str, Any]]:
        """Return the name and the arguments that a key of the spec gives.

        Args:
            key: The key. Its value is `NAME`, or `{value: NAME, args: {...}}`.
            example: A valid name, for the error.

        Raises:
            DefinitionError: The key is missing or has another form.
        """
        given = _plain(self._spec.get(key))
        if isinstance(given, Mapping) and set(given) <= {"value", "args"} and "value" in given:
            return str(given["value"]), dict(given.get("args") or {})
        if isinstance(given, str):
            return given, {}
        what = "is missing" if given is None else f"is {given!r}"
        raise DefinitionError(
            f"{self._spec.where(key)}: {key} {what}; expected a name, such as {key}: {example}, "
            f"or {key}: {{value: {example}, args: {{...}}}}."
        )

    @cached_property
    def _taken(self) -> BatchSignature:
        first = next(iter(self.load().parameters()), None)
        # The first parameter shows the type of the first layer, but not the full input shape.
        shape: tuple[int | None, ...] | None = None
        if first is not None and first.ndim == 2:  # noqa: PLR2004 - a Linear's weight
            shape = (int(first.shape[1]),)
        elif first is not None and first.ndim == 4:  # noqa: PLR2004 - a Conv2d's weight
            shape = (int(first.shape[1]), None, None)
        return BatchSignature([InputSignature("input", shape)])


def _symbolic(model: Any, name: str) -> list[Any]:
    try:
        found = getattr(model, name, None)
    except (AttributeError, ValueError):
        return []
    return list(found) if isinstance(found, (list, tuple)) else []


def _saved_inputs(model: Any) -> list[Any]:
    """Return the inputs that a SavedModel declares, for models without symbolic inputs."""
    saved = model.save_spec() if hasattr(model, "save_spec") else None
    first = saved[0] if saved else ()
    return [each for each in first if hasattr(each, "shape")] if len(first) == 1 else []


def _scores(model: Any, inputs: Sequence[InputSignature]) -> int:
    """Return the number of scores per example (the size of the last axis) in a model's output.

    Returns 0 if it is unknown, or if the model has several outputs.
    """
    outputs = _symbolic(getattr(model, "inner", model), "outputs")
    shape = inputs[0].shape if len(inputs) == 1 else None
    if not outputs and shape is not None and None not in shape:
        # The outputs of a subclassed model are known only after a call.
        outputs = [model(np.zeros([1, *(axis or 0 for axis in shape)], inputs[0].dtype))]
    if len(outputs) != 1 or not hasattr(outputs[0], "shape"):
        return 0
    found = tuple(outputs[0].shape)
    return int(found[-1] or 0) if len(found) > 1 else 0


def _is_categorical(*saved: Mapping[str, Any] | None) -> bool:
    """Return whether compile settings name a categorical loss, which expects one-hot labels.

    Args:
        saved: Compile settings, in order of preference; the first that name a loss are used.
    """
    loss = next((each["loss"] for each in saved if each and each.get("loss") is not None), None)
    if isinstance(loss, Mapping):
        loss = loss.get("value") or loss.get("class_name") or loss.get("config")
    return str(loss).replace("_", "").lower().startswith("categorical")


def _like_outputs(loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Wrap a loss function so that it gets labels in the shape of the outputs.

    Without this, labels `(n,)` and outputs `(n, 1)` would broadcast to all pairs of examples.
    """

    def compared(outputs: Any, labels: Any) -> Any:
        if labels.shape != outputs.shape and labels.numel() == outputs.numel():
            labels = labels.reshape(outputs.shape)
        return loss(outputs, labels.to(outputs.dtype))

    return compared


def _accuracy(mode: Mode) -> MetricFunctions:
    del mode

    def accuracy(labels: Any, outputs: Any) -> Any:
        return (outputs.argmax(1) == labels).float()

    return MetricFunctions(named=[NamedMetric("accuracy", accuracy)])


def _plain(value: Any) -> Any:
    return value.to_dict() if isinstance(value, ConfigStruct) else value
