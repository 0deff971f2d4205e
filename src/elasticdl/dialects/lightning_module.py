"""LightningModule dialect: converts an unchanged LightningModule to a `ModelDefinition`.

    class Net(L.LightningModule):
        def training_step(self, batch, batch_idx): ...        the loss; see lightning_steps.py
        def validation_step(self, batch, batch_idx): ...      optional
        def predict_step(self, batch, batch_idx): ...         optional
        def configure_optimizers(self): ...                   an optimizer, and its schedulers

    def custom_model():                                       optional: creates the module
        return Net.load_from_checkpoint("before.ckpt")

Data come from the first of these that exists:

    input_fn(records), data_schema()                          of the file, as for every model file
    class Data(L.LightningDataModule)                         of the file; `data_dir` is --data
    train_dataloader(), val_dataloader()                      of the module

The file may also have `gradient_clipping`, `precision` and `averaged_model`, like any PyTorch model
file; in Lightning, these are arguments of the Trainer.
"""

from __future__ import annotations

import ast
import inspect
import logging
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from elasticdl.definition import BatchesInput, Input, Mode, ModelDefinition
from elasticdl.dialects.callbacks import as_callbacks
from elasticdl.dialects.dialect_reader import DialectReader, call, locations_of
from elasticdl.dialects.frameworks import is_lightning, overridden
from elasticdl.dialects.inputs import as_input, schema_of, with_schema
from elasticdl.dialects.model_code import INPUT_FUNCTIONS, Symbol, location_of
from elasticdl.dialects.models import as_model_factory
from elasticdl.dialects.optimizers import with_parameters
from elasticdl.dialects.params import Params, described, signature_of
from elasticdl.dialects.source_lines import assigned_line
from elasticdl.dialects.torch_loaders import (
    SharedGeneratorCheck,
    as_module,
    as_whole,
    check_in_order,
    epochs_of,
)
from elasticdl.dialects.torch_updates import as_function_of, as_gradient_clipping, as_precision
from elasticdl.dialects.unread_names import is_used
from elasticdl.errors import UserCodeError
from elasticdl.training.metric_names import split_stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasticdl.definition import Epochs
    from elasticdl.dialects.model_code import ModelCode

_log = logging.getLogger("elasticdl")

NAME = "lightning_module"
TITLE = "a LightningModule"
NEEDS = "a LightningModule class with training_step and configure_optimizers, and data for it"
_REQUIRED = ("training_step", "configure_optimizers")
_MAKER = "custom_model"
# Lightning methods that a module may override; other overrides are rejected by name.
_SUPPORTED = {
    *_REQUIRED,
    "validation_step",
    "test_step",
    "predict_step",
    "forward",
    "train_dataloader",
    "val_dataloader",
    "test_dataloader",
    "predict_dataloader",
    "prepare_data",
    "setup",
    "configure_model",
    "example_input_array",
    # Of torch.nn.Module.
    "extra_repr",
    "parameters",
    "named_parameters",
}
# Methods that Lightning's Trainer calls, also if they are attributes of the object.
_OF_TRAINER = re.compile(
    r"(on|configure|optimizer|lr_scheduler)_\w+|\w+_(step|dataloader)|setup|teardown|prepare_data"
    r"|backward|transfer_batch_to_device"
)
# Parts of other model files; beside a LightningModule they have no effect.
_UNREAD = (
    "loss",
    "optimizer",
    "eval_metrics_fn",
    "weighted_metrics_fn",
    "lr_scheduler",
    "class_weight",
    "PredictionOutputsProcessor",
    "custom_data_reader",
    "train_dataloader",
    "val_dataloader",
    "predict_dataloader",
)
# Keys of what `configure_optimizers` may return.
_OF_OPTIMIZERS = ("optimizer", "lr_scheduler", "monitor", "frequency")
# Keys of a scheduler's configuration that only a logger of the learning rate uses.
_OF_LOGGERS = ("name", "strict")
_LOADERS = {
    Mode.TRAINING: "train_dataloader",
    Mode.EVALUATION: "val_dataloader",
    Mode.PREDICTION: "predict_dataloader",
}
_INSTEAD = {
    "on_train_epoch_end": "Logged values are already averaged over the epoch.",
    "on_validation_epoch_end": "Logged values are already averaged over the evaluation.",
    "on_test_epoch_end": "Logged values are already averaged over the evaluation.",
    "configure_callbacks": "Define callbacks of your own in the file: def callbacks(): ... Use "
    "--restore_best_weights and --best_metric for the best checkpoint.",
    "configure_gradient_clipping": "Set it in the file: gradient_clipping = 1.0",
}
_IN_A_STEP = (
    "Do it in the steps of the module (training_step, validation_step), or in a collate_fn of the "
    "loaders, and remove the method."
)
_IN_THE_DATA = (
    "Data continue after a resume without it: the same batches follow. Keep no other state in the "
    "data module, and remove the method."
)
# Methods of a LightningDataModule that are not called here -> what to do instead.
_NOT_OF_DATA = {
    "on_before_batch_transfer": _IN_A_STEP,
    "transfer_batch_to_device": _IN_A_STEP,
    "on_after_batch_transfer": _IN_A_STEP,
    "state_dict": _IN_THE_DATA,
    "load_state_dict": _IN_THE_DATA,
    "on_exception": "Do it elsewhere and remove the method.",
}
# Lightning's message for `self.trainer` of a module without a Trainer.
_NO_TRAINER = "is not attached to a"


def matches(model_code: ModelCode) -> bool:
    """Return whether `model_def` names a LightningModule, or a file with exactly one.

    In a file, a LightningModule counts if it defines `training_step` and no class that counts
    extends it.
    """
    return len(_modules(model_code)) == 1


def define(model_code: ModelCode) -> ModelDefinition:
    """Return the definition of a LightningModule.

    Raises:
        DefinitionError: A method is missing or not supported.
        UsageError: A param is unknown, missing or has the wrong type.
        UserCodeError: A user function raised.
    """
    found = _modules(model_code)
    if len(found) != 1:
        names = " and ".join(symbol.name for symbol in found) or "no LightningModule"
        raise DialectReader(NAME, TITLE, model_code).error(
            model_code.symbol, f"the file has {names}.", "Choose one: --model_def=FILE.CLASS"
        )
    module = found[0]
    has = [name for name in sorted(_SUPPORTED) if overridden(module.value, name)]
    reading = DialectReader(
        NAME,
        TITLE,
        model_code.with_symbol(module),
        has,
        Params(model_code.params),
        framework="torch",
    )
    _check_methods(module, reading)
    for name in model_code.overrides.keys() - {"input_fn"}:
        raise reading.error(
            model_code.overrides[name],
            f"--{name} names another {name}, but {module.name} has its own.",
            f"Leave out --{name}, and change the module.",
        )
    for name in _UNREAD:
        if (unread := model_code.find(name)) and not is_used(name, model_code):
            raise reading.error(
                unread,
                f"{name} would be ignored: {module.name} describes the model.",
                f"Move it into {module.name} if that has such a method, or remove it.",
            )
    models = _Models(module, reading)
    model_input, place = _input(module, models, reading)
    schema = schema_of(model_code.find("data_schema"), reading)
    create_average = as_function_of("model", model_code.find("averaged_model"), reading)
    clipping = as_gradient_clipping(model_code.find("gradient_clipping"), reading)
    create_callbacks = as_callbacks(model_code.find("callbacks"), reading)
    reading.params.check()
    return ModelDefinition(
        origin=reading.origin,
        framework="torch",
        loss_within="training_step",
        create_model=models.create,
        input=with_schema(model_input, schema),
        loss=None,
        create_optimizer=lambda: models.optimizer,
        create_lr_schedulers=models.schedulers,
        gradient_clipping=clipping,
        create_average=create_average,
        precision=as_precision(model_code.find("precision"), reading),
        create_callbacks=create_callbacks,
        params=dict(model_code.params),
        places=locations_of(
            model=module,
            input=place,
            loss=_method(module, "training_step"),
            optimizer=_method(module, "configure_optimizers"),
            lr_scheduler=_method(module, "configure_optimizers"),
            callbacks=model_code.find("callbacks"),
        ),
    )


class _Models:
    """Creates models of the user's class, and their optimizers and schedulers.

    Args:
        module: The user's LightningModule class.
        reading: Reader of the user's code, which provides the params and builds error messages.
    """

    def __init__(self, module: Symbol, reading: DialectReader) -> None:
        self._module, self._reading = module, reading
        self._maker = reading.model_code.find(_MAKER) or module
        self._create = as_model_factory(self._maker, reading)
        self._newest: Any = None
        self._schedulers: Any = None

    def create(self) -> Any:
        """Create a model and call the hooks that Lightning's `Trainer.fit` calls before training.

        Raises:
            DefinitionError: `custom_model` returned an object of another class, or the model
                optimizes manually.
        """
        model = self._create()
        if not isinstance(model, self._module.value):
            raise self._reading.error(
                self._maker,
                f"{self._maker.name}() returned {described(model)}.",
                f"Expected a {self._module.name}.",
            )
        self._check(model)
        hooks: list[tuple[str, tuple[str, ...]]] = [("setup", ("fit",)), ("configure_model", ())]
        if self._newest is None:
            # Called once, because it writes files that are the same for each model.
            hooks.insert(0, ("prepare_data", ()))
        for hook, given in hooks:
            if overridden(type(model), hook):
                symbol = _method(self._module, hook)
                call(
                    Symbol(symbol.name, getattr(model, hook), symbol.file, symbol.line),
                    *given,
                )
        self._check(model)
        self._newest = model
        return model

    def _check(self, model: Any) -> None:
        for name in sorted(vars(model).keys() & set(_methods_of_lightning(type(model)))):
            # A wrapped method, such as torch.compile(self.training_step), is called here, too.
            is_called = name in _SUPPORTED and overridden(type(model), name)
            if _OF_TRAINER.fullmatch(name) and callable(getattr(model, name)) and not is_called:
                file, line = self._module.file, self._module.line
                raise self._reading.error(
                    f"{file}:{assigned_line(Path(file), name, line)}",
                    f"the attribute {name} of the {self._module.name} replaces a method of the "
                    "LightningModule, and would not be called here.",
                    "Define the method in the class."
                    if name in _SUPPORTED
                    else _INSTEAD.get(name, "Do it elsewhere and remove the attribute."),
                )
        if not model.automatic_optimization:
            file, name = self._module.file, "automatic_optimization"
            raise self._reading.error(
                f"{file}:{assigned_line(Path(file), name, self._module.line)}",
                f"{self._module.name} has automatic_optimization = False.",
                "It applies its own updates, which workers could not share. A module with one "
                "optimizer can return the loss from training_step instead; a GAN, with several "
                "optimizers, is not supported.",
            )

    def newest(self, data: str, mode: Mode) -> Any:
        """Return the model created last, so that its dataloader methods can be called.

        Creates a model if there is none yet. The arguments are ignored: `_Loaders` passes them to
        any `owner`, but only a LightningDataModule needs them.
        """
        del data, mode
        return self._newest if self._newest is not None else self.create()

    def optimizer(self, parameters: Sequence[Any], model: Any) -> Any:
        """Call the model's `configure_optimizers` and return the optimizer.

        The schedulers that it also returned are stored; `schedulers` returns them.

        Args:
            parameters: The parameters to optimize, in the order of the model's own.
            model: The model, or a copy of it.

        Raises:
            DefinitionError: The method uses `self.trainer`, or returned something unsupported.
            UserCodeError: The method raised.
        """
        symbol = _method(self._module, "configure_optimizers")
        model = with_parameters(model, parameters, symbol, self._reading)
        configure = Symbol(symbol.name, model.configure_optimizers, symbol.file, symbol.line)
        try:
            made = call(configure)
        except UserCodeError as error:
            if _NO_TRAINER not in str(error.__cause__):
                raise
            raise self._reading.error(
                symbol,
                f"{symbol.name}() uses self.trainer, and there is no Lightning Trainer here.",
                "Pass the value to the class as an argument of __init__: --params=total_steps=1000 "
                "(training reports its number of steps when it ends) or --params=max_epochs=10.",
            ) from error
        optimizer, self._schedulers = _parts(made, symbol, self._reading)
        return optimizer

    def schedulers(self, optimizer: Any) -> Any:
        """Return the schedulers from the last call of `optimizer`; the argument is ignored."""
        del optimizer
        return self._schedulers


def _parts(made: Any, symbol: Symbol, reading: DialectReader) -> tuple[Any, Any]:
    """Return the optimizer and the schedulers from the result of `configure_optimizers`.

    Raises:
        DefinitionError: There is not exactly one optimizer, or a dict has unknown keys.
    """
    if isinstance(made, (list, tuple)) and len(made) == 1 and isinstance(made[0], dict):
        made = made[0]
    if isinstance(made, dict):
        if "optimizer" not in made:
            raise reading.error(
                symbol,
                f"configure_optimizers() returned a dict with {', '.join(map(str, made))}.",
                'Expected {"optimizer": ..., "lr_scheduler": ...}.',
            )
        if unknown := [str(key) for key in made if key not in _OF_OPTIMIZERS]:
            raise reading.error(
                symbol,
                f"configure_optimizers() returned a dict with {', '.join(unknown)}.",
                f"Lightning uses {', '.join(_OF_OPTIMIZERS)} only.",
            )
        return made["optimizer"], _schedules(made.get("lr_scheduler"), made.get("monitor"))
    optimizers, schedulers = _as_list(made), []
    if isinstance(made, (list, tuple)) and any(isinstance(each, (list, tuple)) for each in made):
        optimizers, schedulers = _as_list(made[0]), _schedules(made[1])
    if len(optimizers) != 1:
        what = f"{len(optimizers)} optimizers" if optimizers else described(made)
        raise reading.error(
            symbol,
            f"configure_optimizers() returned {what}.",
            "Expected one optimizer: each update is applied by one optimizer, which workers share. "
            "Layers with other learning rates may be parameter groups of it; a GAN, with several "
            "optimizers, is not supported.",
        )
    return optimizers[0], schedulers


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _schedules(value: Any, monitor: str | None = None) -> list[Any]:
    """Return schedulers in the form that `training/torch/schedulers.py` reads.

    Args:
        value: One scheduler or a list of them, each with or without a dict of its options.
        monitor: Name of the metric for each `ReduceLROnPlateau` that has no dict of options, as in
            Lightning; None if there is none.
    """
    if monitor:
        value = [
            {"scheduler": each, "monitor": monitor} if _is_plateau(each) else each
            for each in _as_list(value)
        ]
    return [
        {
            # The monitored metric is renamed to its reported name.
            key: "".join(split_stage(said)) if key == "monitor" and said else said
            for key, said in each.items()
            if key not in _OF_LOGGERS
        }
        if isinstance(each, dict)
        else each
        for each in _as_list(value)
    ]


def _is_plateau(scheduler: Any) -> bool:
    return any(kind.__name__ == "ReduceLROnPlateau" for kind in type(scheduler).__mro__)


def _modules(model_code: ModelCode) -> list[Symbol]:
    """Return the LightningModule that `model_def` names; empty if it names another object.

    If `model_def` names a file, return the LightningModules of the file that define
    `training_step`, without those that others of them descend from.
    """
    if not model_code.names_a_file:
        named = model_code.symbol
        return [named] if is_lightning(named.value, "LightningModule") else []
    found = [
        symbol
        for symbol in _classes(model_code, "LightningModule")
        if overridden(symbol.value, "training_step")
    ]
    bases = {base for symbol in found for base in symbol.value.__mro__[1:]}
    return [symbol for symbol in found if symbol.value not in bases]


def _classes(model_code: ModelCode, kind: str) -> list[Symbol]:
    """Return a model file's classes that descend from a Lightning class.

    If the file defines no such class, returns those that it imports. Imported ones do not count if
    the file has a function `loss` or `optimizer`, because then functions describe the model.

    Args:
        model_code: The code of the model.
        kind: Name of the Lightning class, such as `LightningModule`.
    """
    own = [symbol for symbol in model_code.classes() if is_lightning(symbol.value, kind)]
    if own or any(map(model_code.find, ("loss", "optimizer"))):
        return own
    imported = model_code.imported_classes()
    return [symbol for symbol in imported if is_lightning(symbol.value, kind)]


def _check_methods(module: Symbol, reading: DialectReader) -> None:
    missing = [name for name in _REQUIRED if not overridden(module.value, name)]
    if missing:
        raise reading.error(
            module, f"{module.name} has no {' and no '.join(missing)}.", "Add what is missing."
        )
    for name in overridden_of_lightning(module.value):
        if name in _SUPPORTED:
            continue
        where = _method(module, name)
        raise reading.error(
            where,
            f"{module.name} has {name}(), which would not be called here.",
            _INSTEAD.get(name, "Do it elsewhere and remove the method."),
        )


def overridden_of_lightning(module: type) -> list[str]:
    """Return the names of the LightningModule methods that a user's class overrides.

    A class that overrides a method which is not called here is rejected.
    """
    return [name for name in _methods_of_lightning(module) if overridden(module, name)]


def _methods_of_lightning(module: type) -> list[str]:
    """Return the names of the public methods of the LightningModule that a class descends from."""
    theirs = next(kind for kind in module.__mro__ if kind.__name__ == "LightningModule")
    public = [name for name in dir(theirs) if not name.startswith("_")]
    return [name for name in public if callable(inspect.getattr_static(theirs, name, None))]


def _method(module: Symbol, name: str) -> Symbol:
    function = inspect.getattr_static(module.value, name, None)
    file, line = location_of(function) or (module.file, module.line)
    return Symbol(f"{module.short_name}.{name}", function, file, line)


# --- data ------------------------------------------------------------------------------------


def _input(module: Symbol, models: _Models, reading: DialectReader) -> tuple[Input, Symbol]:
    model_code = reading.model_code
    overrides = model_code.overrides
    functions = [
        s for name in INPUT_FUNCTIONS if (s := overrides.get(name) or model_code.find(name))
    ]
    if functions:
        return as_input(functions[0], reading), functions[0]
    validates = overridden(module.value, "validation_step")
    classes = _classes(model_code, "LightningDataModule")
    if len(classes) > 1:
        raise reading.error(
            classes[0],
            f"the file has {' and '.join(symbol.name for symbol in classes)}.",
            "Keep one LightningDataModule in it.",
        )
    if classes:
        loaders = _DataModules(classes[0], reading)
        return loaders.input(validates), classes[0]
    if overridden(module.value, "train_dataloader"):
        own = _Loaders(models.newest, module, reading)
        return own.input(validates), _method(module, "train_dataloader")
    raise reading.error(
        module,
        "there is no data for it.",
        "Add input_fn(records) and data_schema(), a LightningDataModule, or train_dataloader() to "
        "the module.",
    )


class _Loaders:
    """Input from the dataloader methods of a LightningModule or LightningDataModule.

    Args:
        owner: Function (location of the data, mode) -> object that has the dataloader methods.
        symbol: Class of this object.
        reading: Reader of the user's code, which builds error messages.
    """

    def __init__(
        self, owner: Callable[[str, Mode], Any], symbol: Symbol, reading: DialectReader
    ) -> None:
        self._owner, self._symbol, self._reading = owner, symbol, reading
        self._own_generators = SharedGeneratorCheck()

    def input(self, validates: bool) -> BatchesInput:
        """Return the loaders as the `input` of the model's definition.

        Args:
            validates: Whether the model has a `validation_step`. Validation also needs a
                `val_dataloader`.
        """
        has = {mode: overridden(self._symbol.value, name) for mode, name in _LOADERS.items()}
        return BatchesInput(
            self.open_epochs,
            validates=validates and has[Mode.EVALUATION],
            predicts=has[Mode.PREDICTION],
        )

    def open_epochs(self, data: str, mode: Mode) -> Epochs:
        """Return the batches of the loader for a mode, epoch by epoch; see `BatchesInput`.

        Raises:
            DefinitionError: The method is missing, or does not return one suitable DataLoader.
            UserCodeError: The method raised.
        """
        name = _LOADERS[mode]
        symbol = _method(self._symbol, name)
        if not overridden(self._symbol.value, name):
            raise self._reading.error(
                self._symbol, f"{self._symbol.name} has no {name}().", "Add it."
            )
        owner = self._owner(data, mode)
        loader = call(Symbol(symbol.name, getattr(owner, name), symbol.file, symbol.line))
        loaders = list(loader) if isinstance(loader, (list, tuple)) else [loader]
        if len(loaders) != 1:
            raise self._reading.error(
                symbol, f"{symbol.name}() returned {len(loaders)} loaders.", "Return one of them."
            )
        if mode is Mode.PREDICTION:
            check_in_order(loaders[0], symbol, self._reading)
        parts_of = as_whole if mode is Mode.PREDICTION else as_module
        epochs = epochs_of(loaders[0], symbol, self._reading, parts_of, ends_at_length=True)
        self._own_generators.check(loaders[0], mode, symbol, self._reading)
        return epochs


class _DataModules(_Loaders):
    """Input from a LightningDataModule.

    For each location of data, one object is created and set up for training and validation, and
    another one for predictions.
    """

    def __init__(self, symbol: Symbol, reading: DialectReader) -> None:
        super().__init__(self._data_module, symbol, reading)
        for name, instead in _NOT_OF_DATA.items():
            if overridden(symbol.value, name) and not _does_nothing(
                inspect.getattr_static(symbol.value, name)
            ):
                self._refuse(_method(symbol, name), name, instead)
        takes = signature_of(symbol).parameters
        self._data_name = next((name for name in ("data_dir", "data", "root") if name in takes), "")
        self._given = reading.params.declare(symbol, {self._data_name} - {""})
        self._made: dict[tuple[str, str], Any] = {}

    def _refuse(self, where: Symbol | str, name: str, instead: str) -> NoReturn:
        raise self._reading.error(
            where, f"{self._symbol.name} has {name}(), which would not be called here.", instead
        )

    def _data_module(self, data: str, mode: Mode) -> Any:
        stage = "predict" if mode is Mode.PREDICTION else "fit"
        if (data, stage) not in self._made:
            symbol = self._symbol
            where = {self._data_name: data} if self._data_name else {}
            made = call(symbol, **where, **self._given)
            for name in sorted(vars(made).keys() & _NOT_OF_DATA.keys()):
                line = assigned_line(Path(symbol.file), name, symbol.line)
                self._refuse(f"{symbol.file}:{line}", name, _NOT_OF_DATA[name])
            if overridden(symbol.value, "teardown") and not _does_nothing(type(made).teardown):
                where_ = _method(symbol, "teardown")
                _log.warning(
                    "%s:%s: %s has teardown(), which is not called here. Do its work elsewhere.",
                    where_.file,
                    where_.line,
                    symbol.name,
                )
            for name, given in (("prepare_data", ()), ("setup", (stage,))):
                hook = _method(symbol, name)
                call(Symbol(hook.name, getattr(made, name), hook.file, hook.line), *given)
            self._made[data, stage] = made
        return self._made[data, stage]


def _does_nothing(function: Any) -> bool:
    """Return whether a method only passes, or returns None, {} or its batch, as in templates."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return False
    return isinstance(tree.body[0], ast.FunctionDef) and all(
        isinstance(each, ast.Pass)
        or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
        or (isinstance(each, ast.Return) and _is_nothing(each.value))
        for each in tree.body[0].body
    )


def _is_nothing(returned: ast.expr | None) -> bool:
    if isinstance(returned, ast.Dict):
        return not returned.keys
    return (
        returned is None
        or (isinstance(returned, ast.Constant) and returned.value is None)
        or (isinstance(returned, ast.Name) and returned.id == "batch")
    )
