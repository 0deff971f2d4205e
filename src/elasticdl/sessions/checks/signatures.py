"""Rules of the session check for the methods of component classes.

They report a missing method, or one that does not accept the arguments with which training would
call it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from elasticdl.dialects.component_classes import missing_methods
from elasticdl.dialects.model_code import location_of
from elasticdl.sessions.checks.finding import CheckFinding, error

if TYPE_CHECKING:
    from elasticdl.dialects.model_code import Symbol

CALLED_WITH: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "data_loader_class": {
        "create_training_generator": (),
        "create_validation_generator": (),
        "create_test_generator": (),
        "get_validation_index": (),
    },
    "preprocessor_class": {
        "image_preprocess": ("image",),
        "label_preprocess": ("label",),
        "add_image_preprocess": ("generator",),
        "add_label_preprocess": ("generator",),
        "add_weight_preprocess": ("generator",),
        "batchify": ("generator", "n_data_points"),
        "add_preprocess": ("generator", "n_data_points"),
    },
    "augmentor_class": {
        "add_augmentation": ("generator",),
        "add_validation_augmentation": ("generator",),
    },
    "model_builder_class": {
        "get_compiled_model": (),
        "get_callbacks": (),
        "get_class_weight": (),
    },
    "evaluator_class": {"get_eval_funcs": ()},
}
"""Key of the config -> method -> arguments of the call."""


def check(key: str, symbol: Symbol, where: str) -> Iterator[CheckFinding]:
    """Yield findings for methods of a component that are missing or have wrong arguments.

    Args:
        key: Key in the config, such as `data_loader_class`.
        symbol: The class that the config names under this key.
        where: `file:line` of the key in the config.
    """
    if not inspect.isclass(symbol.value):
        # Creating the components reports this.
        return
    for name in missing_methods(key, symbol):
        yield error(
            f"{symbol.short_name} has no method {name}(); it is the {key} of {where}.",
            symbol,
            f"Add it:  def {name}(self{''.join(f', {a}' for a in _arguments(key, name))})",
        )
    for name, arguments in CALLED_WITH[key].items():
        method = inspect.getattr_static(symbol.value, name, None)
        function = getattr(symbol.value, name, None)
        if method is None or not callable(function):
            continue
        own = () if isinstance(method, (staticmethod, classmethod)) else ("self",)
        try:
            inspect.signature(function).bind(*own, *arguments)
        except TypeError as problem:
            place = location_of(function)
            yield error(
                f"{symbol.short_name}.{name}{inspect.signature(function)} cannot be called as "
                f"{name}({', '.join(arguments)}): {problem}.",
                symbol if place is None else f"{place[0]}:{place[1]}",
                f"Change its parameters to ({', '.join((*own, *arguments))}).",
            )
        except ValueError:
            # Implemented in C: Python does not know its signature.
            continue


def _arguments(key: str, name: str) -> tuple[str, ...]:
    return CALLED_WITH[key].get(name, ("config",) if name == "_load_params" else ())
