"""Base classes of the five components of a training session: data loader, model builder, ...

Users import them from the package `abstractions`. This module defines what each method takes and
returns; `dialects/abstractions.py` calls the methods and defines their order. A class need not
derive from these: a class with the same methods is accepted as well, both by `isinstance` and by
`dialects/abstractions.py`.

The methods are those that version 0.1.4 of the package `abstractions` documents. Methods that later
versions of the package added have a default here, so that subclasses written for any version work.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from elasticdl.config_file import ConfigStruct

EvalFunctions: TypeAlias = (
    "Mapping[str, Callable[[Any, Any], Any]] | Sequence[Callable[[Any, Any], Any]]"
)


class BaseClass(ABC):
    """Common base class of all components: sets their parameters from a config, or to defaults.

    Every parameter of a component is an attribute. Without a config, for example in a notebook, a
    component has the default parameters.

    Args:
        config: The whole config of the session. None: keep the default parameters.
    """

    # A class with all of these methods is accepted without inheriting from this one.
    _METHODS: ClassVar[Sequence[str]] = ()

    def __init__(self, config: ConfigStruct | None = None) -> None:
        self.config = config
        self._set_defaults()
        if config is not None:
            self._load_params(config)

    @abstractmethod
    def _set_defaults(self) -> None:
        """Set every parameter to its default."""

    @abstractmethod
    def _load_params(self, config: ConfigStruct) -> None:
        """Set every parameter to its value in the config."""

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        methods = cls.__dict__.get("_METHODS")
        if methods and all(callable(getattr(other, name, None)) for name in methods):
            return True
        return NotImplemented


class DataLoaderBase(BaseClass):
    """Reads examples one by one; the preprocessor builds the batches.

    A *generator* is a `tf.data.Dataset`, a Python generator (endless ones too), or a Keras
    `PyDataset`.

    Args:
        config: The whole config of the session. None: keep the default parameters.
        data_dir: Folder of the data. None: `data_dir` of the config.

    Attributes:
        data_dir: The folder, as a `pathlib.Path`; None if it was not specified.
    """

    _METHODS = ("create_training_generator", "create_validation_generator", "create_test_generator")

    def __init__(
        self, config: ConfigStruct | None = None, data_dir: str | Path | None = None
    ) -> None:
        if data_dir is None and config is not None:
            data_dir = getattr(config, "data_dir", None)
        self.data_dir = None if data_dir is None else Path(data_dir)
        super().__init__(config)

    @abstractmethod
    def create_training_generator(self) -> tuple[Any, int]:
        """Return a generator of `(x, y, sample weight)`, and the number of examples in an epoch."""

    @abstractmethod
    def create_validation_generator(self) -> tuple[Any, int]:
        """Return a generator of `(x, y, sample weight)` for validation, and the number of examples.

        The order of the examples must be the same each time.
        """

    @abstractmethod
    def create_test_generator(self) -> tuple[Any, int]:
        """Return a finite generator of `(x, y, id)` for testing, and the number of examples."""

    def get_validation_index(self) -> Sequence[Any] | None:
        """Return the ids of the validation examples, in the order of the validation generator.

        By default, this returns None: the ids are then the numbers of the examples, from 0.
        """
        return None


class AugmentorBase(BaseClass):
    """Changes examples at random during training."""

    _METHODS = ("add_augmentation",)

    @abstractmethod
    def add_augmentation(self, generator: Any) -> Any:
        """Return a generator of the same examples `(x, y, sample weight)`, each one augmented."""

    def add_validation_augmentation(self, generator: Any) -> Any:
        """Return a generator of augmented validation examples.

        By default, they are augmented like those for training.
        """
        return self.add_augmentation(generator)


class PreprocessorBase(BaseClass):
    """Converts examples to the inputs of the model, and builds batches."""

    _METHODS = ("add_image_preprocess", "add_label_preprocess", "batchify")

    def image_preprocess(self, image: Any) -> Any:
        """Convert one `x` to the model's input; unchanged by default."""
        return image

    def label_preprocess(self, label: Any) -> Any:
        """Convert one `y` to the label that the loss expects; unchanged by default."""
        return label

    @abstractmethod
    def add_image_preprocess(self, generator: Any) -> Any:
        """Return a generator with each `x` preprocessed."""

    @abstractmethod
    def add_label_preprocess(self, generator: Any) -> Any:
        """Return a generator with each `y` preprocessed."""

    def add_weight_preprocess(self, generator: Any) -> Any:
        """Return a generator with each sample weight preprocessed; unchanged by default."""
        return generator

    @abstractmethod
    def batchify(self, generator: Any, n_data_points: int) -> tuple[Any, int]:
        """Build batches of preprocessed examples.

        Args:
            generator: Yields the examples.
            n_data_points: Number of examples in an epoch.

        Returns:
            An endless generator of batches, and the number of batches in an epoch.
        """

    def add_preprocess(self, generator: Any, n_data_points: int) -> tuple[Any, int]:
        """Preprocess examples and build batches: call all `add_...` methods, then `batchify`.

        Args:
            generator: Yields the examples.
            n_data_points: Number of examples in an epoch.

        Returns:
            An endless generator of batches, and the number of batches in an epoch.
        """
        generator = self.add_image_preprocess(generator)
        generator = self.add_label_preprocess(generator)
        generator = self.add_weight_preprocess(generator)
        return self.batchify(generator, n_data_points)


class ModelBuilderBase(BaseClass):
    """Builds the compiled Keras model, its callbacks and the weights of its classes."""

    _METHODS = ("get_compiled_model",)

    @abstractmethod
    def get_compiled_model(self) -> Any:
        """Return a compiled `keras.Model`."""

    def get_callbacks(self) -> Sequence[Any]:
        """Return Keras callbacks; none, unless a subclass overrides this."""
        return []

    def get_class_weight(self) -> Mapping[int, float] | None:
        """Return the weight of each class in the loss; None for equal weights."""
        return None


class EvaluatorBase(BaseClass):
    """Computes evaluation metrics of the model on single examples."""

    _METHODS = ("get_eval_funcs",)

    def _set_defaults(self) -> None:
        """Do nothing, so that an evaluator without parameters need not define this method."""

    def _load_params(self, config: ConfigStruct) -> None:
        """Do nothing, so that an evaluator without parameters need not define this method."""

    @abstractmethod
    def get_eval_funcs(self) -> EvalFunctions:
        """Return the evaluation functions `(y_true, y_pred) -> number`, by name or as a list.

        The functions receive one example, not a batch, and return a number or a tensor of one.
        """
