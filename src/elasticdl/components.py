"""The five components of a training session, as users derive from them: `import abstractions`.

What each method takes and returns is said here; who calls them and in which order, in
`dialects/abstractions.py`. A class need not derive from these: one that has the methods is
accepted as well, here by `isinstance` and there by the dialect.

The contract is that of the `abstractions` 0.1.4 documents; what its later versions added has a
default here, so that code of any version is a subclass of these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from elasticdl.config import ConfigStruct

EvalFunctions: TypeAlias = (
    "Mapping[str, Callable[[Any, Any], Any]] | Sequence[Callable[[Any, Any], Any]]"
)


class BaseClass(ABC):
    """What all components have in common: parameters with defaults, or from a config.

    All parameters of a component are attributes; it can be made without a config, in a notebook.

    Args:
        config: The whole config of the session; None keeps the defaults.
    """

    # What another class must have to count as one of this kind.
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
        """Set every parameter to what the config says."""

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        methods = cls.__dict__.get("_METHODS")
        if methods and all(callable(getattr(other, name, None)) for name in methods):
            return True
        return NotImplemented


class DataLoaderBase(BaseClass):
    """Reads examples, one by one; batches are made by the preprocessor.

    A *generator* is a `tf.data.Dataset`, a Python generator (endless ones too), or a Keras
    `PyDataset`.

    Args:
        config: The whole config of the session; None keeps the defaults.
        data_dir: Where the data is; None takes `data_dir` of the config.

    Attributes:
        data_dir: The folder, as a `pathlib.Path`; None where nobody said it.
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
        """Return a generator of `(x, y, sample weight)`, and how many examples an epoch has."""

    @abstractmethod
    def create_validation_generator(self) -> tuple[Any, int]:
        """Return the same of the validation data, in the same order each time."""

    @abstractmethod
    def create_test_generator(self) -> tuple[Any, int]:
        """Return a generator of `(x, y, id)` that ends, and how many there are."""

    def get_validation_index(self) -> Sequence[Any] | None:
        """Return the ids of the validation data in the order of its generator; None for numbers."""
        return None


class AugmentorBase(BaseClass):
    """Changes examples at random while training."""

    _METHODS = ("add_augmentation",)

    @abstractmethod
    def add_augmentation(self, generator: Any) -> Any:
        """Return a generator of changed `(x, y, sample weight)`."""

    def add_validation_augmentation(self, generator: Any) -> Any:
        """Return a generator for validation; as for training, unless a subclass says more."""
        return self.add_augmentation(generator)


class PreprocessorBase(BaseClass):
    """Turns examples into what the model takes, and into batches."""

    _METHODS = ("add_image_preprocess", "add_label_preprocess", "batchify")

    def image_preprocess(self, image: Any) -> Any:
        """Return what the model takes for one `x`."""
        return image

    def label_preprocess(self, label: Any) -> Any:
        """Return what the loss takes for one `y`."""
        return label

    @abstractmethod
    def add_image_preprocess(self, generator: Any) -> Any:
        """Return a generator with each `x` preprocessed."""

    @abstractmethod
    def add_label_preprocess(self, generator: Any) -> Any:
        """Return a generator with each `y` preprocessed."""

    def add_weight_preprocess(self, generator: Any) -> Any:
        """Return a generator with each sample weight preprocessed; as it is, by default."""
        return generator

    @abstractmethod
    def batchify(self, generator: Any, n_data_points: int) -> tuple[Any, int]:
        """Return an endless generator of batches, and how many of them make an epoch."""

    def add_preprocess(self, generator: Any, n_data_points: int) -> tuple[Any, int]:
        """Return an endless generator of preprocessed batches, and how many make an epoch."""
        generator = self.add_image_preprocess(generator)
        generator = self.add_label_preprocess(generator)
        generator = self.add_weight_preprocess(generator)
        return self.batchify(generator, n_data_points)


class ModelBuilderBase(BaseClass):
    """Makes the model."""

    _METHODS = ("get_compiled_model",)

    @abstractmethod
    def get_compiled_model(self) -> Any:
        """Return a compiled `keras.Model`."""

    def get_callbacks(self) -> Sequence[Any]:
        """Return Keras callbacks; none, unless a subclass says more."""
        return []

    def get_class_weight(self) -> Mapping[int, float] | None:
        """Return the weight of each class in the loss; None for equal ones."""
        return None


class EvaluatorBase(BaseClass):
    """Says how good the model is at one example."""

    _METHODS = ("get_eval_funcs",)

    def _set_defaults(self) -> None:
        """An evaluator need not have parameters."""

    def _load_params(self, config: ConfigStruct) -> None:
        """An evaluator need not have parameters."""

    @abstractmethod
    def get_eval_funcs(self) -> EvalFunctions:
        """Return functions `(y_true, y_pred) -> number` by name, or a list of named functions.

        They get one example, not a batch, and return a number or a tensor of one.
        """
