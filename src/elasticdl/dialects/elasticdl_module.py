"""ElasticDL module dialect: reads a model file that consists of functions with fixed names.

The names and arguments are those of model files for the ElasticDL of 2019, or for later versions:

    2019                                    later
    model = keras.Model(...)                def custom_model(): ... / class CustomModel
    def input_fn(records): ...              def feed(dataset, mode, metadata): ... / dataset_fn
    def loss(output, labels): ...           def loss(labels, predictions): ...
    def eval_metrics_fn(predictions, labels) -> values     eval_metrics_fn() -> metrics
    def optimizer(): ...                    def optimizer(): ...
    def data_schema(): ...                  callbacks, PredictionOutputsProcessor,
                                            custom_data_reader

A file may mix both styles. A function's signature determines which arguments it receives.

A model that is created when its file is imported would have weights from before seeding, and a
second run in the same process would continue with the weights of the first. Therefore
`create_model` of the definition imports the zoo's files again, and every other function is taken
from the newest import.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import TYPE_CHECKING, Any

from elasticdl.definition import Input, ModelDefinition, RecordInput
from elasticdl.dialects.alternative_names import alternative_name_notes, misspelled
from elasticdl.dialects.callbacks import as_callbacks
from elasticdl.dialects.class_weight import as_class_weight
from elasticdl.dialects.default_input import default_input
from elasticdl.dialects.default_input import note as input_note
from elasticdl.dialects.dialect_reader import DialectReader, LateBoundFunction, call, locations_of
from elasticdl.dialects.frameworks import framework_of, framework_of_model, is_lightning
from elasticdl.dialects.inputs import as_input, schema_of, with_schema
from elasticdl.dialects.losses import as_loss
from elasticdl.dialects.metrics import evaluation_metrics, with_weighted
from elasticdl.dialects.model_code import (
    CONTRACT_FUNCTIONS,
    DEFAULTS,
    INPUT_FUNCTIONS,
    LOADER,
    ModelCode,
    Symbol,
    function_of,
)
from elasticdl.dialects.models import as_model_factory
from elasticdl.dialects.optimizers import as_optimizer_factory, as_torch_optimizer_factory
from elasticdl.dialects.params import Params, described
from elasticdl.dialects.readers import ReaderOpener
from elasticdl.dialects.torch_loaders import LoaderFunctions
from elasticdl.dialects.torch_updates import (
    as_function_of,
    as_gradient_clipping,
    as_precision,
)
from elasticdl.errors import DefinitionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasticdl.dialects.frameworks import Framework

NAME = "elasticdl_module"
TITLE = "an ElasticDL module"
NEEDS = "a model (model, custom_model), loss, optimizer, and mostly input_fn, feed or dataset_fn"

MODELS = ("model", "custom_model", "CustomModel")
_REQUIRED = ("loss", "optimizer")
_OVERRIDES = ("input_fn", "loss", "optimizer")
_OPTIONAL = (
    "data_schema",
    "eval_metrics_fn",
    "weighted_metrics_fn",
    "class_weight",
    "callbacks",
    "lr_scheduler",
    "gradient_clipping",
    "averaged_model",
    "precision",
    "PredictionOutputsProcessor",
    "custom_data_reader",
    "prepare_data_for_a_single_file",
)


def matches(model_code: ModelCode) -> bool:
    """Return whether the files of the model that `model_def` names have a part such as `loss`.

    A `train_dataloader` alone is enough.

    Returns False if a class in them fits another dialect, such as a Keras class with `default_`
    settings.
    """
    value = model_code.symbol.value
    if inspect.isclass(value):
        if framework_of_model(value) is None or _trains_itself(model_code, value):
            return False
        if any(hasattr(value, name) for name in DEFAULTS):
            # A class with settings of the Keras class dialect: ambiguous only if the file is a
            # complete model file too.
            alone = dataclasses.replace(model_code, overrides={})
            return not _missing(alone) and _has_input(alone)
    elif any(_trains_itself(model_code, symbol.value) for symbol in model_code.classes()):
        return False
    return any(model_code.find(name) for name in (*CONTRACT_FUNCTIONS, LOADER))


def _trains_itself(model_code: ModelCode, value: Any) -> bool:
    """Return whether a class is a LightningModule whose file has no `loss` and no `optimizer`.

    Such a class describes its own training: the LightningModule dialect reads it, not this one.
    """
    return is_lightning(value, "LightningModule") and not any(map(model_code.find, _REQUIRED))


def define(model_code: ModelCode) -> ModelDefinition:
    """Return the definition of a model file.

    Raises:
        DefinitionError: A function is missing, or does not take the arguments that ElasticDL
            passes.
        UsageError: A param is unknown, missing or has the wrong type.
        UserCodeError: `data_schema()` raised.
    """
    reading = DialectReader(NAME, TITLE, model_code, _found(model_code), Params(model_code.params))
    missing = _missing(model_code)
    if list(missing) == ["loss"] and _may_compute_loss(model_code):
        missing = {}
    if missing:
        flags = [f"--{name}=FILE.FUNCTION" for name in _OVERRIDES if name in missing]
        raise reading.error(
            model_code.symbol.file,
            f"{', '.join(missing.values())} {'is' if len(missing) == 1 else 'are'} missing."
            f"{misspelled(model_code, [*missing, *(MODELS if 'model' in missing else ())])}",
            "Add what is missing"
            + (f", or name it from another file: {' '.join(flags)}" if flags else "."),
        )
    model = _model(model_code, reading)
    reading = dataclasses.replace(reading, framework=_framework(model, reading))
    is_object = not (inspect.isroutine(model.value) or inspect.isclass(model.value))
    newest = _LatestImport(model_code, is_late=is_object)
    opener = None
    if reader := newest.find("custom_data_reader"):
        opener = ReaderOpener(reader, reading)
    name = _input_name(model_code, reading)
    input_function = None if name is None else newest.required(name)
    model_input: Input
    if input_function is None:
        # `create_model` is defined below.
        model_input = default_input(
            model_code.symbol.file,
            lambda: create_model(),  # noqa: PLW0108
            misspelled(model_code, INPUT_FUNCTIONS),
            of_torch=reading.framework == "torch",
        )
    elif input_function.short_name == LOADER:
        model_input = LoaderFunctions(
            input_function,
            newest.find("val_dataloader"),
            newest.find("predict_dataloader"),
            reading,
        ).input
    else:
        model_input = as_input(
            input_function, reading, metadata=opener.metadata if opener else lambda: None
        )
    read_schema = schema_of(newest.find("data_schema"), reading)
    has_loss = newest.find("loss") is not None
    loss = as_loss(newest.required("loss"), reading) if has_loss else None
    as_factory = (
        as_torch_optimizer_factory if reading.framework == "torch" else as_optimizer_factory
    )
    create_optimizer = as_factory(newest.required("optimizer"), reading)
    create_lr_schedulers = as_function_of("optimizer", newest.find("lr_scheduler"), reading)
    create_average = as_function_of("model", newest.find("averaged_model"), reading)
    gradient_clipping = as_gradient_clipping(newest.find("gradient_clipping"), reading)
    create_metrics = with_weighted(
        evaluation_metrics(newest.find("eval_metrics_fn"), reading),
        evaluation_metrics(newest.find("weighted_metrics_fn"), reading),
        newest.find("weighted_metrics_fn"),
        reading,
    )
    class_weight = as_class_weight(newest.find("class_weight"), reading)
    create_callbacks = as_callbacks(newest.find("callbacks"), reading)
    create_processor = _processor(newest.find("PredictionOutputsProcessor"), reading)
    create_model = (
        functools.partial(_import_model, newest, model.name, reading)
        if is_object
        else as_model_factory(model, reading)
    )
    reading.params.check()
    return ModelDefinition(
        origin=reading.origin,
        framework=reading.framework,
        create_model=_checked(create_model, model, reading),
        input=with_schema(model_input, read_schema),
        loss=loss,
        loss_within="" if has_loss else "forward",
        create_optimizer=create_optimizer,
        create_lr_schedulers=create_lr_schedulers,
        gradient_clipping=gradient_clipping,
        create_average=create_average,
        precision=as_precision(newest.find("precision"), reading),
        class_weight=class_weight,
        create_metrics=create_metrics,
        create_callbacks=create_callbacks,
        labels_as_numpy=reading.framework == "keras" and _is_first_generation(model_input),
        create_outputs_processor=create_processor,
        open_source=opener,
        params=dict(model_code.params),
        notes=functools.partial(_notes, reading, has_input=input_function is not None),
        places=locations_of(
            model=model,
            input=input_function,
            validation=newest.find("val_dataloader") if name == LOADER else None,
            loss=newest.find("loss"),
            metrics=newest.find("eval_metrics_fn") or newest.find("weighted_metrics_fn"),
            optimizer=newest.find("optimizer"),
            lr_scheduler=newest.find("lr_scheduler"),
            gradient_clipping=newest.find("gradient_clipping"),
            averaged_model=newest.find("averaged_model"),
            callbacks=newest.find("callbacks"),
            processor=newest.find("PredictionOutputsProcessor"),
        ),
    )


class _LatestImport:
    """Finds a model file's functions by name, in the newest import of the file.

    Args:
        model_code: The code of the model.
        is_late: Whether `find` wraps a function in a `LateBoundFunction`. After `reload`, the
            wrapper calls the function of the new import.
    """

    def __init__(self, model_code: ModelCode, *, is_late: bool) -> None:
        self._model_code = model_code
        self._is_late = is_late

    def reload(self) -> ModelCode:
        """Import the zoo's files again, for later calls of `find`; return the new code."""
        self._model_code = self._model_code.reload()
        return self._model_code

    def find(self, name: str) -> Symbol | None:
        """Return a model file's function by name; None if the file has none.

        If the user has named another function to use instead, such as `--loss=FILE.FUNCTION`,
        returns that. If `is_late`, the result looks the function up again at each call.
        """
        symbol = self._lookup(name)
        if symbol is None or not self._is_late or not inspect.isroutine(function_of(symbol.value)):
            # A Keras loss or a class: its type matters, and it keeps no state of a run.
            return symbol
        return dataclasses.replace(
            symbol,
            value=LateBoundFunction(symbol.value, lambda: self.required(name, late=False).value),
        )

    def required(self, name: str, *, late: bool = True) -> Symbol:
        """Return a function that the file is known to have; like `find`, but never None.

        Args:
            name: Name of the function.
            late: If False, the result is the plain function of the newest import even if
                `is_late`.

        Raises:
            DefinitionError: The function no longer exists.
        """
        symbol = self.find(name) if late else self._lookup(name)
        if symbol is None:
            raise DefinitionError(
                f"{self._model_code.symbol.file}: {name} existed when the file was first imported, "
                "but no longer does. The file may have been changed while it was used."
            )
        return symbol

    def _lookup(self, name: str) -> Symbol | None:
        return self._model_code.overrides.get(name) or self._model_code.find(name)


def _notes(reading: DialectReader, *, has_input: bool) -> list[str]:
    code = reading.model_code
    own = []
    if not has_input:
        own.append(input_note(code.symbol.file) + misspelled(code, INPUT_FUNCTIONS))
    has_loss = "loss" in code.overrides or code.find("loss") is not None
    if not has_loss and (near := misspelled(code, ["loss"])):
        own.append(f"{code.symbol.file} has no loss.{near}")
    return [*own, *alternative_name_notes(reading)]


def _found(model_code: ModelCode) -> list[str]:
    names = (*MODELS, *INPUT_FUNCTIONS, LOADER, *_REQUIRED, *_OPTIONAL)
    return [name for name in names if model_code.find(name) is not None]


def _missing(model_code: ModelCode) -> dict[str, str]:
    """Return the required parts that a model file lacks.

    Returns:
        Short name of each part, such as `loss`, -> its name in messages.
    """

    def has(*names: str) -> bool:
        return any(name in model_code.overrides or model_code.find(name) for name in names)

    missing = {}
    if model_code.names_a_file and not has(*MODELS):
        missing["model"] = "model (or custom_model)"
    return missing | {name: name for name in _REQUIRED if not has(name)}


def _has_input(model_code: ModelCode) -> bool:
    """Return whether the model has an input function or a `train_dataloader`.

    They may be in its files, or be named by flags such as `--input_fn`.
    """
    has = any(name in model_code.overrides or model_code.find(name) for name in INPUT_FUNCTIONS)
    return has or _has_loader(model_code)


def _framework_there(model_code: ModelCode) -> Framework | None:
    """Return the framework of the model that the files define; None if it is unclear."""
    there = [s for name in MODELS if (s := model_code.find(name))] or [model_code.symbol]
    frameworks = {framework_of(symbol, model_code.modules) for symbol in there}
    return frameworks.pop() if len(frameworks) == 1 else None


def _may_compute_loss(model_code: ModelCode) -> bool:
    """Return whether a file without a `loss` is allowed, because its model may compute the loss.

    The trainer checks later that it does.
    """
    if _framework_there(model_code) == "torch":
        # As models of Hugging Face do in `forward`.
        return True
    return any("compute_loss" in vars(symbol.value) for symbol in model_code.classes())


def _has_loader(model_code: ModelCode) -> bool:
    return model_code.find(LOADER) is not None and _framework_there(model_code) == "torch"


def _model(model_code: ModelCode, reading: DialectReader) -> Symbol:
    """Return the model, or the function or class that creates it.

    Raises:
        DefinitionError: The named file has several, or the named object is not a model.
    """
    model = model_code.symbol
    if model_code.names_a_file:
        there = [symbol for name in MODELS if (symbol := model_code.find(name))]
        if len(there) > 1:
            raise reading.error(
                there[0],
                f"the file has {' and '.join(symbol.name for symbol in there)}.",
                "Choose the model: "
                + " or ".join(f"--model_def={model_code.model_def}.{each.name}" for each in there),
            )
        model = there[0]
    if not callable(model.value):
        raise reading.error(
            model,
            f"{model.name} is {described(model.value)}, not a model.",
            "Expected a model of Keras or PyTorch, or a function or class that creates one.",
        )
    return model


def _framework(model: Symbol, reading: DialectReader) -> Framework:
    framework = framework_of(model, reading.model_code.modules)
    if framework is None:
        raise reading.error(
            model,
            f"the file imports PyTorch and Keras or TensorFlow, but {model.name} does not declare "
            "which of them its model uses.",
            f"Declare it: def {model.short_name}() -> torch.nn.Module, or -> keras.Model.",
        )
    return framework


def _checked(
    create_model: Callable[[], Any], model: Symbol, reading: DialectReader
) -> Callable[[], Any]:
    """Wrap a function that creates models, to reject a model of another framework than detected.

    Args:
        create_model: Function () -> model created by the user's code.
        model: The user's function or class, for errors.
        reading: Reader of the user's code, which has detected the framework from the files.
    """

    def create() -> Any:
        made = create_model()
        if framework_of_model(made) not in (None, reading.framework):
            raise reading.error(
                model,
                f"{model.name} created a {type(made).__name__}, which is not a model of "
                f"{'PyTorch' if reading.framework == 'torch' else 'Keras'}, which the file seems "
                "to use.",
                f"Declare it: def {model.short_name}() -> torch.nn.Module, or -> keras.Model.",
            )
        return made

    return create


def _import_model(newest: _LatestImport, name: str, reading: DialectReader) -> Any:
    """Import the zoo's files again and return the model that the import created.

    For a file that creates its model at the top level (`model = keras.Model(...)`).

    Args:
        newest: The last import of the files, which is replaced by a new one.
        name: Name of the model in its file.
        reading: Reader of the user's code, which builds error messages.

    Raises:
        DefinitionError: The file no longer has the name.
    """
    model_code = newest.reload()
    symbol = (
        model_code.find(name.rpartition(".")[2]) if model_code.names_a_file else model_code.symbol
    )
    if symbol is None:
        raise reading.error(model_code.symbol, f"{name} no longer exists.", "Import it again.")
    return symbol.value


def _input_name(model_code: ModelCode, reading: DialectReader) -> str | None:
    """Return the name of the model file's input function; None if there is none.

    Raises:
        DefinitionError: The file has several different ones.
    """
    if "input_fn" in model_code.overrides:
        return "input_fn"
    there = [symbol for name in INPUT_FUNCTIONS if (symbol := model_code.find(name))]
    if not there:
        return LOADER if _has_loader(model_code) else None
    if any(symbol.value is not there[0].value for symbol in there):
        raise reading.error(
            there[0],
            f"the file has {' and '.join(symbol.name for symbol in there)}: either could make the "
            "batches.",
            f"Choose one: --input_fn={there[0].name}",
        )
    return there[0].name


def _is_first_generation(model_input: Input) -> bool:
    """Return whether the user's functions may call NumPy methods of labels, such as `flatten`.

    That is so in model files in the style of 2019, with `input_fn(records)`, whose labels always
    were NumPy arrays, and in those without an input function. It is not so in those with a
    `tf.data` pipeline or a `DataLoader`.
    """
    return isinstance(model_input, RecordInput)


def _processor(symbol: Symbol | None, reading: DialectReader) -> Callable[[], Any] | None:
    if symbol is None:
        return None
    if not callable(getattr(symbol.value, "process", None)):
        raise reading.error(
            symbol,
            "PredictionOutputsProcessor has no method process(predictions, worker_id).",
            "Add it.",
        )
    params = reading.params.declare(symbol)
    return functools.partial(call, symbol, **params)
