"""Component classes named in a session's config, and the methods they must have.

The components are data loader, preprocessor, augmentor, model builder and evaluator; see
`abstractions.py`. This module does not create them.

Callers: `abstractions.py`, and code that inspects a config or a class before a component exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl.components import PreprocessorBase
from elasticdl.config_file import ConfigStruct, lines_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasticdl.dialects.model_code import ModelCode, Symbol

COMPONENTS = ("data_loader_class", "preprocessor_class", "augmentor_class", "evaluator_class")
"""Config keys that name a class, except for the model builder's."""
OPTIONAL_KEYS = (
    "augmentor_class",
    "data_dir",
    "do_train_augmentation",
    "do_validation_augmentation",
    "evaluator_class",
    "project_name",
    "seed",
)
"""Keys that read as None if a config lacks them."""
_SECTION = "model"
_METHODS = {
    "data_loader_class": (
        "create_training_generator",
        "create_validation_generator",
        "create_test_generator",
    ),
    "preprocessor_class": ("add_image_preprocess", "add_label_preprocess", "batchify"),
    "augmentor_class": ("add_augmentation",),
    "evaluator_class": ("get_eval_funcs",),
    "model_builder_class": ("get_compiled_model",),
}


def lines_in(file: str) -> Mapping[str, int]:
    """Return the line of each key of a session's config.

    Args:
        file: The config file of a session; or the config file of a party in federated training,
            which has the keys of a session in its section `model`.
    """
    lines = lines_of(file)
    if f"{_SECTION}.model_builder_class" not in lines:
        return lines
    own = f"{_SECTION}."
    return {key.removeprefix(own): n for key, n in lines.items() if key.startswith(own)}


def config_of(model_code: ModelCode) -> ConfigStruct:
    """Return the config of a session, with line numbers if it comes from a file.

    A number of epochs given outside the config, to train a finished session further, replaces that
    of the config.
    """
    file = model_code.config_file
    config = ConfigStruct(
        model_code.params,
        file=file or "the config",
        lines=lines_in(file) if file else {},
        optional=OPTIONAL_KEYS,
    )
    if "num_epochs" not in model_code.context:
        return config
    # A finished session can be resumed with more epochs than its file has.
    return config.with_values(epochs=model_code.context["num_epochs"])


def missing_methods(key: str, symbol: Symbol) -> list[str]:
    """Return the required methods that a component class lacks.

    Args:
        key: Key of the config that names the class, such as `data_loader_class`.
        symbol: The class.
    """
    missing = [
        name
        for name in _METHODS[key]
        if not callable(getattr(symbol.value, name, None))
        or getattr(getattr(symbol.value, name), "__isabstractmethod__", False)
    ]
    if key == "preprocessor_class" and replaces_the_whole(symbol.value):
        # A preprocessor with its own `add_preprocess` needs no separate methods.
        missing = []
    return missing + sorted(getattr(symbol.value, "__abstractmethods__", frozenset()) - {*missing})


def has_parts(preprocessor: type) -> bool:
    """Return whether a preprocessor has the methods for single steps, such as `batchify`.

    If so, these can be called one by one where its `add_preprocess` as a whole fails.
    """
    return all(
        callable(method := getattr(preprocessor, name, None))
        and not getattr(method, "__isabstractmethod__", False)
        for name in _METHODS["preprocessor_class"]
    )


def replaces_the_whole(preprocessor: type) -> bool:
    """Return whether a preprocessor has its own `add_preprocess`, not that of the base class.

    The base class's method calls the methods for single steps in turn. A preprocessor with its own
    `add_preprocess` does not need them.
    """
    own = getattr(preprocessor, "add_preprocess", None)
    return own is not None and own is not PreprocessorBase.add_preprocess
