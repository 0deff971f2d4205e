"""Session dialect: converts a training session's component classes to a `ModelDefinition`.

    data_loader --> augmentor --> preprocessor --> endless batches, and their number in an epoch
                                  model_builder --> a compiled model

A session is a training run described by component classes and a config. It is passed as a
`ModelCode`: its `symbol` is the class of the model builder, its `overrides` are the classes of the
other components, and its `params` are the complete config of the session. The classes must have
the required methods, but need not derive from ElasticDL's base classes.

All objects that read data are rebuilt for each epoch, including the components (they may shuffle
their own lists), so that an epoch depends only on its number. Each epoch begins at the first
example and ends with the last one, even if the user's batches continue with a repetition of the
data. Sample weights are multiplied by class weights for training.

`component_classes.py` lists the methods that the classes must have; `component_batches.py` checks
their batches.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.definition import BatchesInput, Epochs, Mode, ModelDefinition
from elasticdl.dialects import pipelines, split_examples
from elasticdl.dialects.component_batches import batch_of, one_epoch
from elasticdl.dialects.component_classes import (
    config_of,
    has_parts,
    missing_methods,
    replaces_the_whole,
)
from elasticdl.dialects.dialect_reader import DialectReader, call, locations_of
from elasticdl.dialects.model_code import location_of
from elasticdl.dialects.params import described, signature_of
from elasticdl.dialects.split_examples import SplitMethod
from elasticdl.dialects.unread_names import check_unread, unread_functions
from elasticdl.errors import DefinitionError, UserCodeError, raised_at, users_traceback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.config_file import ConfigStruct
    from elasticdl.data.batch import Batch
    from elasticdl.dialects.model_code import ModelCode, Symbol

NAME = "abstractions"
TITLE = "the components of a training session"
NEEDS = "a class with get_compiled_model, and a config file (elasticdl session run)"
_BY_PARTS = (
    "add_preprocess() does not accept ids in place of sample weights, so test data was made by "
    "add_image_preprocess(), add_label_preprocess() and batchify()."
)
_IDS_BY_ORDER = (
    "The preprocessor does not accept ids in place of sample weights, so it received weights of "
    "1, and the ids were added in the order of the loader."
)
_REPLACEMENTS = {
    "eval_metrics_fn": "get_compiled_model",
    "weighted_metrics_fn": "get_compiled_model",
    "class_weight": "get_class_weight",
    "callbacks": "get_callbacks",
}
_KEPT_BY_US = {"ModelCheckpoint": "checkpoints", "TensorBoard": "TensorBoard's logs"}


def matches(model_code: ModelCode) -> bool:
    """Return whether `model_def` names a class that builds compiled models."""
    value = model_code.symbol.value
    return inspect.isclass(value) and callable(getattr(value, "get_compiled_model", None))


def define(model_code: ModelCode) -> ModelDefinition:
    """Return the definition of a session, given its component classes and its config.

    Raises:
        DefinitionError: A component or a method of one is missing, or the config lacks a key.
        UserCodeError: A component raised.
    """
    return Components(model_code).definition()


@dataclass(frozen=True, eq=False)
class Split:
    """The examples of the validation or test split, both raw and preprocessed, one at a time.

    Attributes:
        name: The user's name for the generator, for errors.
        num_examples: Declared number of examples.
        raw: Function () -> iterator over the examples before preprocessing: `(x, y, id)` in the
            test split, `(x, y, sample weight)` in the validation split.
        preprocessed: Function () -> iterator over the same examples after the user's preprocessor,
            in the form that the model takes, but not batched.
        notes: Notes to the user on how the examples were prepared; filled while they are read.
    """

    name: str
    num_examples: int
    raw: Callable[[], Iterator[Any]]
    preprocessed: Callable[[], Iterator[Any]]
    notes: list[str] = field(default_factory=list)


class Components:
    """A session's components: objects of the user's classes, created with the session's config.

    Calls them to provide the parts of a `ModelDefinition`, such as the model and the batches.

    Args:
        model_code: The code of the session: `symbol` is the class of the model builder, `overrides`
            has the classes of the other components by config key, such as `data_loader_class`, and
            `params` is the config.
        config: Config to pass to the components. None: the config in `model_code`.

    Raises:
        DefinitionError: A class or a method is missing, or the config lacks a key.
        UserCodeError: A constructor raised.
    """

    def __init__(self, model_code: ModelCode, config: ConfigStruct | None = None) -> None:
        self.reading = DialectReader(NAME, TITLE, model_code)
        self.config = config_of(model_code) if config is None else config
        self._symbols = {"model_builder_class": model_code.symbol, **model_code.overrides}
        for key in ("data_loader_class", "preprocessor_class"):
            if key not in self._symbols:
                raise DefinitionError(
                    f"{self.config.where()}: there is no {key}. Specify the class, such as "
                    f"{key}: dataset.MyClass"
                )
        for key, symbol in self._symbols.items():
            self._check_methods(key, symbol)
        check_unread(model_code.symbol, _REPLACEMENTS, self.reading)
        self.preprocessor = self._made("preprocessor_class")
        self.augmentor = self._made("augmentor_class")
        self.evaluator = self._made("evaluator_class")
        self.model_builder = self._made("model_builder_class")
        self.newest_model: Any = None
        for key in ("do_train_augmentation", "do_validation_augmentation"):
            if self.config.get(key) and self.augmentor is None:
                raise DefinitionError(
                    f"{self.config.where(key)}: {key} is set, but there is no augmentor_class. "
                    "Specify the class, such as augmentor_class: augmentation.MyAugmentor, or set "
                    f"{key}: false"
                )

    # --- the model ------------------------------------------------------------------------

    def definition(self) -> ModelDefinition:
        """Return the session as a `ModelDefinition`."""
        return ModelDefinition(
            origin=self.reading.origin,
            framework="keras",
            create_model=self.create_model,
            input=BatchesInput(self.open_epochs),
            loss=None,
            create_optimizer=lambda: self.newest_model.optimizer,
            compiled=True,
            create_callbacks=self.create_callbacks,
            params=dict(self.reading.model_code.params),
            notes=lambda: unread_functions(self._symbols["model_builder_class"], self.reading),
            places=locations_of(model=self._symbols["model_builder_class"]),
            # A session ends with this export.
            required_exports=("saved_model",),
        )

    def create_model(self) -> Any:
        """Call the user's model builder, and return its compiled model.

        The model is also kept in `newest_model`, because its optimizer is read from there.
        """
        self.newest_model = _call(self.model_builder, "get_compiled_model")
        return self.newest_model

    def create_callbacks(self) -> Sequence[Any]:
        """Return the callbacks of the user's model builder, without those that ElasticDL replaces.

        For example, ElasticDL writes checkpoints itself, so a `ModelCheckpoint` is left out.
        """
        return own_callbacks(self.model_builder)

    def class_weight(self) -> Mapping[int, float] | None:
        """Return the weight of each class; None for equal weights."""
        return class_weight_of(self.model_builder)

    # --- the data -------------------------------------------------------------------------

    def loader(self, data: str) -> Any:
        """Create an object of the user's data loader class, which will read a data folder.

        The config that it gets names the folder as `data_dir`. If the constructor has a second
        parameter, or one named `data_dir`, the folder is passed there as well.

        Args:
            data: The data folder.
        """
        symbol = self._symbols["data_loader_class"]
        parameters = signature_of(symbol).parameters.values()
        takes = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
        # A loader may read the data folder from the config.
        config = self.config.with_values(data_dir=data)
        if len(takes) > 1 or any(p.kind is p.VAR_POSITIONAL for p in takes):
            return call(symbol, config, Path(data))
        by_name = any(p.name == "data_dir" for p in parameters)
        return call(symbol, config, **({"data_dir": Path(data)} if by_name else {}))

    def open_epochs(self, data: str, mode: Mode) -> Epochs:
        """Return the user's batches, epoch by epoch; see `definition.BatchesInput`.

        Args:
            data: The data folder.
            mode: TRAINING takes the training generator, other modes the validation generator.

        Raises:
            DefinitionError: A method of a component did not return a pair: a generator, and the
                number of its examples or batches.
            UserCodeError: A component raised.
        """
        training = mode is Mode.TRAINING
        method = "create_training_generator" if training else "create_validation_generator"
        name = self._name("data_loader_class", method)
        # As in Keras, a validation loss counts every class equally.
        weights = self.class_weight() if training else None

        def build() -> tuple[Any, int, int]:
            generator, num_examples = self._generator(data, method)
            generator = self._augmented(generator, training=training)
            batches, num_batches = self._preprocessed(generator, num_examples)
            return batches, num_batches, num_examples

        batches, num_batches, num_examples = build()
        kind = pipelines.kind_of(batches, name)
        length = pipelines.length_of(batches)

        def begin(epoch: int, first: int) -> Iterator[Batch]:
            again, _, _ = build()
            if hasattr(again, "on_epoch_end"):
                # Such objects shuffle there, or count the epochs.
                for _ in range(epoch):
                    _call(again, "on_epoch_end")
                _check_length(again, length, epoch, name)
            parts = pipelines.elements(again, name, first)
            made = (batch_of(part, name, weights) for part in parts)
            if kind == "indexed":
                return made
            return one_epoch(made, num_batches, num_examples)

        return Epochs(
            num_examples=num_examples,
            num_batches=num_batches,
            begin=begin,
            indexed=kind == "indexed",
            reproducible=kind != "iterable",
            name=name,
        )

    def split(self, data: str, name: str) -> Split:
        """Return the examples of the `validation` or `test` split, one by one.

        No example is lost or repeated at the end of the user's batches (`split_examples.py`).

        Args:
            data: The data folder.
            name: `validation` or `test`.
        """
        method = f"create_{name}_generator"
        called = self._name("data_loader_class", method)
        _, num_examples = self._generator(data, method)
        notes: list[str] = []

        def raw() -> Iterator[Any]:
            return pipelines.elements(self._generator(data, method)[0], called)

        def preprocessed() -> Iterator[Any]:
            return split_examples.rows(
                lambda: self._generator(data, method)[0],
                self._ways(has_ids=name == "test"),
                name=called,
                num_examples=num_examples,
                notes=notes,
            )

        return Split(called, num_examples, raw, preprocessed, notes)

    def _ways(self, *, has_ids: bool) -> list[SplitMethod]:
        """Return the ways to preprocess and batch a split's examples, in the order to try them.

        The first way is the one that training uses. Others follow only for examples with ids, which
        the user's code may reject: if it raises, the next way is tried.

        Args:
            has_ids: Whether examples are `(x, y, id)`, as in the test split, and not
                `(x, y, sample weight)`.
        """
        preprocessor = self._made("preprocessor_class")
        methods = ["add_image_preprocess", "add_label_preprocess"]
        if not has_ids:
            methods.append("add_weight_preprocess")

        def by_parts(generator: Any) -> Any:
            for method in methods:
                if hasattr(preprocessor, method):
                    generator = _call(preprocessor, method, generator)
            return generator

        def batchified(generator: Any, number: int) -> Any:
            made = _call(preprocessor, "batchify", generator, number)
            return self._pair(made, self._name("preprocessor_class", "batchify"))[0]

        def whole(generator: Any, number: int) -> Any:
            made = _call(preprocessor, "add_preprocess", generator, number)
            return self._pair(made, self._name("preprocessor_class", "add_preprocess"))[0]

        parts = SplitMethod(by_parts, batchified)
        usual = parts
        if replaces_the_whole(type(preprocessor)):
            usual = SplitMethod(lambda generator: generator, whole, drops=False)
        ways = [usual]
        if has_ids and usual is not parts and has_parts(type(preprocessor)):
            ways.append(replace(parts, note=_BY_PARTS))
        if has_ids:
            ways.append(replace(usual, carries_ids=True, note=_IDS_BY_ORDER))
        return ways

    def eval_functions(self) -> Any:
        """Return the user's functions for reports, as `get_eval_funcs()` of the evaluator has them.

        They compute values for each example; see `EvalFunctions`. None without an evaluator.
        """
        if self.evaluator is None:
            return None
        return _call(self.evaluator, "get_eval_funcs")

    def validation_ids(self, data: str) -> Sequence[Any] | None:
        """Return the ids of the validation examples, in the examples' order, for a report.

        They come from the loader's `get_validation_index()`; None if it has no such method.
        """
        loader = self.loader(data)
        if not hasattr(loader, "get_validation_index"):
            return None
        found = _call(loader, "get_validation_index")
        return None if found is None else list(found)

    def _generator(self, data: str, method: str) -> tuple[Any, int]:
        name = self._name("data_loader_class", method)
        return self._pair(_call(self.loader(data), method), name)

    def _augmented(self, generator: Any, *, training: bool) -> Any:
        key = "do_train_augmentation" if training else "do_validation_augmentation"
        asked = self.config.get(key)
        if self.augmentor is None or asked is False or (asked is None and not training):
            return generator
        augmentor = self._made("augmentor_class")
        method = "add_augmentation" if training else "add_validation_augmentation"
        if not hasattr(augmentor, method):
            method = "add_augmentation"
        return _call(augmentor, method, generator)

    def _preprocessed(self, generator: Any, num_examples: int) -> tuple[Any, int]:
        preprocessor, last = self._made("preprocessor_class"), "batchify"
        if hasattr(preprocessor, "add_preprocess"):
            if replaces_the_whole(type(preprocessor)):
                last = "add_preprocess"
            made = _call(preprocessor, "add_preprocess", generator, num_examples)
        else:
            for part in ("add_image_preprocess", "add_label_preprocess", "add_weight_preprocess"):
                if hasattr(preprocessor, part):
                    generator = _call(preprocessor, part, generator)
            made = _call(preprocessor, "batchify", generator, num_examples)
        return self._pair(made, self._name("preprocessor_class", last))

    # --- the components --------------------------------------------------------------------

    def _made(self, key: str) -> Any:
        symbol = self._symbols.get(key)
        if symbol is None:
            return None
        takes_config = any(
            p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)
            for p in signature_of(symbol).parameters.values()
        )
        return call(symbol, *([self.config] if takes_config else []))

    def _check_methods(self, key: str, symbol: Symbol) -> None:
        where = self.config.where(key)
        if not inspect.isclass(symbol.value):
            raise DefinitionError(
                f"{where}: {key} names {symbol.name}, which is {described(symbol.value)}, not a "
                "class. Specify the class: FILE.CLASS"
            )
        missing = missing_methods(key, symbol)
        if missing:
            raise DefinitionError(
                f"{symbol}: {symbol.name} has no {', no '.join(missing)}.\n"
                f"  It is the {key} of {where}.\n"
                f"  Add {'it' if len(missing) == 1 else 'them'}, or specify another class."
            )

    def _pair(self, made: Any, name: str) -> tuple[Any, int]:
        try:
            generator, number = made
            number = int(number)
        except (TypeError, ValueError):
            raise DefinitionError(
                f"{name} returned {described(made)}; expected a pair: the generator, and the "
                "number of items that it yields per epoch."
            ) from None
        return generator, number

    def _name(self, key: str, method: str) -> str:
        symbol = self._symbols[key]
        return f"{symbol}: {symbol.short_name}.{method}()"


def _check_length(generator: Any, length: int | None, epoch: int, name: str) -> None:
    """Check that the user's `on_epoch_end()` has not changed a generator's number of batches.

    Args:
        generator: The generator.
        length: Its number of batches in the first epoch; None if unknown.
        epoch: The epoch that begins, from 0.
        name: The user's name for the generator, for the error.

    Raises:
        DefinitionError: The number has changed.
    """
    now = pipelines.length_of(generator)
    if now != length:
        raise DefinitionError(
            f"{name}: the number of batches in epoch {epoch + 1} is {now}; expected {length}, as "
            "in the first epoch. It must be the same in all epochs, because an epoch is divided "
            "among workers and checkpoints. Let on_epoch_end() choose other examples, but as many."
        )


def own_callbacks(model_builder: Any) -> Sequence[Any]:
    """Return a model builder's callbacks, without those that ElasticDL replaces.

    They come from its `get_callbacks()`. `is_replaced` decides which are left out.
    """
    if not hasattr(model_builder, "get_callbacks"):
        return []
    callbacks = _call(model_builder, "get_callbacks") or []
    return [each for each in callbacks if not is_replaced(each)]


def class_weight_of(model_builder: Any) -> Mapping[int, float] | None:
    """Return a model builder's class weights; None for equal weights.

    Raises:
        DefinitionError: They are not a mapping from class numbers to weights.
    """
    if not hasattr(model_builder, "get_class_weight"):
        return None
    found = _call(model_builder, "get_class_weight")
    if found is None:
        return None
    try:
        return {int(label): float(weight) for label, weight in found.items()}
    except (AttributeError, TypeError, ValueError):
        file, line = location_of(model_builder.get_class_weight) or ("the model builder", 0)
        raise DefinitionError(
            f"{file}:{line}: get_class_weight() returned {found!r}; expected a weight for each "
            "class, such as {0: 1.0, 1: 2.5}, or None."
        ) from None


def _call(component: Any, method: str, *args: Any) -> Any:
    try:
        return getattr(component, method)(*args)
    except DefinitionError:
        raise
    except Exception as error:
        file, line = location_of(getattr(component, method)) or (type(component).__module__, 1)
        place = f"{file}:{line}"
        raise UserCodeError(
            f"{raised_at(error, place)}: {type(component).__name__}.{method}() raised:\n"
            f"{users_traceback(error)}"
        ) from error


def is_replaced(callback: Any) -> bool:
    """Return whether ElasticDL leaves out a Keras callback, because it does the same work itself.

    For example, ElasticDL writes checkpoints, so `ModelCheckpoint` is left out.
    """
    return any(
        kind.__name__ in _KEPT_BY_US and kind.__module__.partition(".")[0] == "keras"
        for kind in inspect.getmro(type(callback))
    )
