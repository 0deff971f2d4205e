"""A LightningModule that is trained as it is: it says itself what a step and an update are.

    class Net(L.LightningModule):
        def training_step(self, batch, batch_idx): ...        the loss; see training/torch/lightning
        def validation_step(self, batch, batch_idx): ...      optional
        def predict_step(self, batch, batch_idx): ...         optional
        def configure_optimizers(self): ...                   an optimizer, and its schedulers

Data come from the first of these that is there:

    input_fn(records), data_schema()                          of the file, as for every model file
    class Data(L.LightningDataModule)                         of the file; `data_dir` is --data
    train_dataloader(), val_dataloader()                      of the module

Beside the class, the file may have `gradient_clipping`, `precision` and `averaged_model`, as any
PyTorch model file; they are what Lightning's Trainer is told.
"""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

from elasticdl.definition import BatchesInput, Input, Mode, ModelDefinition
from elasticdl.dialects.callbacks import as_callbacks
from elasticdl.dialects.frameworks import is_lightning, overridden
from elasticdl.dialects.inputs import as_input, schema_of, with_schema
from elasticdl.dialects.models import as_model_factory
from elasticdl.dialects.params import Params, described, signature_of
from elasticdl.dialects.reading import Reading, call, places_of
from elasticdl.dialects.reference import INPUT_FUNCTIONS, Symbol, place_of
from elasticdl.dialects.torch_loaders import as_module, epochs_of
from elasticdl.dialects.torch_updates import as_function_of, as_gradient_clipping, as_precision
from elasticdl.training.metric_names import split_stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasticdl.definition import Epochs
    from elasticdl.dialects.reference import Reference

NAME = "lightning_module"
TITLE = "a LightningModule"
NEEDS = "a LightningModule class with training_step and configure_optimizers, and data for it"
_REQUIRED = ("training_step", "configure_optimizers")
# Methods of Lightning's that a module may override; others are refused by name.
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
# Of other model files, in the place of what a module does by itself.
_OF_MODEL_FILES = ("eval_metrics_fn", "weighted_metrics_fn", "lr_scheduler", "class_weight")
# Of what a scheduler is told to be, for a logger of the learning rate.
_OF_LOGGERS = ("name", "strict")
_INSTEAD = {
    "on_train_epoch_end": "What steps log is averaged over the epoch already.",
    "on_validation_epoch_end": "What validation_step logs is averaged over the evaluation already.",
    "on_test_epoch_end": "What test_step logs is averaged over the evaluation already.",
    "configure_callbacks": "Name them in the file: def callbacks(): ...",
    "configure_gradient_clipping": "Name it in the file: gradient_clipping = 1.0",
}


def matches(reference: Reference) -> bool:
    """Return whether a LightningModule is named, or is the file's only one."""
    return len(_modules(reference)) == 1


def define(reference: Reference) -> ModelDefinition:
    """Return the definition of a LightningModule.

    Raises:
        DefinitionError: A method is missing, or does what cannot be done here.
        UsageError: A param is unknown, missing or ill-typed.
        UserCodeError: A function of the user's raised.
    """
    found = _modules(reference)
    if len(found) != 1:
        names = " and ".join(symbol.name for symbol in found) or "no LightningModule"
        raise Reading(NAME, TITLE, reference).error(
            reference.symbol, f"the file has {names}.", "Name one: --model_def=FILE.CLASS"
        )
    module = found[0]
    has = [name for name in sorted(_SUPPORTED) if overridden(module.value, name)]
    reading = Reading(
        NAME,
        TITLE,
        reference.with_symbol(module),
        has,
        Params(reference.params),
        framework="torch",
    )
    _check_methods(module, reading)
    for name in reference.overrides.keys() - {"input_fn"}:
        raise reading.error(
            reference.overrides[name],
            f"--{name} names another {name}, and {module.name} has its own within.",
            f"Leave out --{name}, and change the module.",
        )
    for name in _OF_MODEL_FILES:
        if function := reference.find(name):
            raise reading.error(
                function,
                f"nothing here would read {name}: {module.name} has its own within.",
                f"Move it into {module.name}, or give it another name.",
            )
    models = _Models(module, reading)
    model_input, place = _input(module, models, reading)
    schema = schema_of(reference.find("data_schema"), reading)
    create_average = as_function_of("model", reference.find("averaged_model"), reading)
    clipping = as_gradient_clipping(reference.find("gradient_clipping"), reading)
    create_callbacks = as_callbacks(reference.find("callbacks"), reading)
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
        precision=as_precision(reference.find("precision"), reading),
        create_callbacks=create_callbacks,
        params=dict(reference.params),
        places=places_of(
            model=module,
            input=place,
            loss=_method(module, "training_step"),
            optimizer=_method(module, "configure_optimizers"),
            lr_scheduler=_method(module, "configure_optimizers"),
            callbacks=reference.find("callbacks"),
        ),
    )


class _Models:
    """Makes models of the user's class, and asks the newest for its optimizer."""

    def __init__(self, module: Symbol, reading: Reading) -> None:
        self._module, self._reading = module, reading
        self._create = as_model_factory(module, reading)
        self._newest: Any = None
        self._schedulers: Any = None

    def create(self) -> Any:
        """Return a new model, as `Trainer.fit` has it when it begins."""
        model = self._create()
        if not model.automatic_optimization:
            raise self._reading.error(
                self._module,
                f"{self._module.name} has automatic_optimization = False.",
                "Its updates would be its own, and workers could not share them. A module with one "
                "optimizer can return the loss from training_step instead; a GAN, with several "
                "optimizers, is not supported.",
            )
        for hook, given in (("setup", ("fit",)), ("configure_model", ())):
            if overridden(type(model), hook):
                symbol = _method(self._module, hook)
                call(
                    Symbol(symbol.name, getattr(model, hook), symbol.file, symbol.line),
                    *given,
                )
        self._newest = model
        return model

    def newest(self, data: str) -> Any:
        """Return the model that was made last, which knows where its data is; or a new one."""
        del data
        return self._newest if self._newest is not None else self.create()

    def optimizer(self, parameters: Sequence[Any]) -> Any:
        """Return the optimizer that the model configures, for these parameters in its place."""
        model = self._newest
        own = list(model.parameters())
        if any(one is not other for one, other in zip(own, parameters, strict=True)):
            # A copy that has these parameters.
            replaced = {id(mine): new for mine, new in zip(own, parameters, strict=True)}
            model = copy.deepcopy(model, replaced)
        symbol = _method(self._module, "configure_optimizers")
        made = call(Symbol(symbol.name, model.configure_optimizers, symbol.file, symbol.line))
        optimizer, self._schedulers = _parts(made, symbol, self._reading)
        return optimizer

    def schedulers(self, optimizer: Any) -> Any:
        """Return the schedulers that were configured with the newest optimizer."""
        del optimizer
        return self._schedulers


def _parts(made: Any, symbol: Symbol, reading: Reading) -> tuple[Any, Any]:
    """Return the optimizer and the schedulers in what `configure_optimizers` returned."""
    if isinstance(made, (list, tuple)) and len(made) == 1 and isinstance(made[0], dict):
        made = made[0]
    if isinstance(made, dict):
        if "optimizer" not in made:
            raise reading.error(
                symbol,
                f"configure_optimizers() returned a dict with {', '.join(map(str, made))}.",
                'Expected {"optimizer": ..., "lr_scheduler": ...}.',
            )
        return made["optimizer"], _schedules(made.get("lr_scheduler"))
    optimizers, schedulers = _as_list(made), []
    if isinstance(made, (list, tuple)) and any(isinstance(each, (list, tuple)) for each in made):
        optimizers, schedulers = _as_list(made[0]), _schedules(made[1])
    if len(optimizers) != 1:
        what = f"{len(optimizers)} optimizers" if optimizers else described(made)
        raise reading.error(
            symbol,
            f"configure_optimizers() returned {what}.",
            "Expected one optimizer: an update is one optimizer's, which workers share.",
        )
    return optimizers[0], schedulers


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _schedules(value: Any) -> list[Any]:
    """Return schedulers as `training/torch/schedulers.py` reads them."""
    return [
        {
            # What is monitored is called as it is reported here.
            key: "".join(split_stage(said)) if key == "monitor" and said else said
            for key, said in each.items()
            if key not in _OF_LOGGERS
        }
        if isinstance(each, dict)
        else each
        for each in _as_list(value)
    ]


def _modules(reference: Reference) -> list[Symbol]:
    """Return the LightningModule that is named, or those of the file that train."""
    if not reference.names_a_file:
        named = reference.symbol
        return [named] if is_lightning(named.value, "LightningModule") else []
    return [
        symbol
        for symbol in reference.classes()
        if is_lightning(symbol.value, "LightningModule")
        and overridden(symbol.value, "training_step")
    ]


def _check_methods(module: Symbol, reading: Reading) -> None:
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
            f"{module.name} has {name}(), which nothing here would call.",
            _INSTEAD.get(name, "Do it elsewhere and remove the method."),
        )


def overridden_of_lightning(module: type) -> list[str]:
    """Return the methods of Lightning's that a class of the user's overrides."""
    theirs = next(kind for kind in module.__mro__ if kind.__name__ == "LightningModule")
    public = [name for name in dir(theirs) if not name.startswith("_")]
    return [
        name
        for name in public
        if callable(inspect.getattr_static(theirs, name, None)) and overridden(module, name)
    ]


def _method(module: Symbol, name: str) -> Symbol:
    function = inspect.getattr_static(module.value, name, None)
    file, line = place_of(function) or (module.file, module.line)
    return Symbol(f"{module.short_name}.{name}", function, file, line)


# --- data ------------------------------------------------------------------------------------


def _input(module: Symbol, models: _Models, reading: Reading) -> tuple[Input, Symbol]:
    reference = reading.reference
    overrides = reference.overrides
    functions = [
        s for name in INPUT_FUNCTIONS if (s := overrides.get(name) or reference.find(name))
    ]
    if functions:
        return as_input(functions[0], reading), functions[0]
    classes = [s for s in reference.classes() if is_lightning(s.value, "LightningDataModule")]
    if len(classes) > 1:
        raise reading.error(
            classes[0],
            f"the file has {' and '.join(symbol.name for symbol in classes)}.",
            "Keep one LightningDataModule in it.",
        )
    if classes:
        loaders = _DataModules(classes[0], reading)
        return BatchesInput(loaders.open_epochs), classes[0]
    if overridden(module.value, "train_dataloader"):
        own = _Loaders(models.newest, module, reading)
        return BatchesInput(own.open_epochs), _method(module, "train_dataloader")
    raise reading.error(
        module,
        "there is no data for it.",
        "Add input_fn(records) and data_schema(), a LightningDataModule, or train_dataloader() to "
        "the module.",
    )


class _Loaders:
    """The loaders of an object that has `train_dataloader` and `val_dataloader`."""

    def __init__(self, owner: Callable[[str], Any], symbol: Symbol, reading: Reading) -> None:
        self._owner, self._symbol, self._reading = owner, symbol, reading

    def open_epochs(self, data: str, mode: Mode) -> Epochs:
        """Return the epochs of the training or of the validation loader."""
        name = "train_dataloader" if mode is Mode.TRAINING else "val_dataloader"
        symbol = _method(self._symbol, name)
        if not overridden(self._symbol.value, name):
            raise self._reading.error(
                self._symbol, f"{self._symbol.name} has no {name}().", "Add it."
            )
        owner = self._owner(data)
        loader = call(Symbol(symbol.name, getattr(owner, name), symbol.file, symbol.line))
        loaders = list(loader) if isinstance(loader, (list, tuple)) else [loader]
        if len(loaders) != 1:
            raise self._reading.error(
                symbol, f"{symbol.name}() returned {len(loaders)} loaders.", "Return one of them."
            )
        return epochs_of(loaders[0], symbol, self._reading, as_module)


class _DataModules(_Loaders):
    """The loaders of a LightningDataModule, made once for each place of data."""

    def __init__(self, symbol: Symbol, reading: Reading) -> None:
        super().__init__(self._data_module, symbol, reading)
        takes = signature_of(symbol).parameters
        self._data_name = next((name for name in ("data_dir", "data", "root") if name in takes), "")
        self._given = reading.params.declare(symbol, {self._data_name} - {""})
        self._made: dict[str, Any] = {}

    def _data_module(self, data: str) -> Any:
        if data not in self._made:
            symbol = self._symbol
            where = {self._data_name: data} if self._data_name else {}
            made = call(symbol, **where, **self._given)
            for name, given in (("prepare_data", ()), ("setup", ("fit",))):
                hook = _method(symbol, name)
                call(Symbol(hook.name, getattr(made, name), hook.file, hook.line), *given)
            self._made[data] = made
        return self._made[data]
