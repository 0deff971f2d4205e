"""Detects whether a model uses Keras or PyTorch, from the model and its file; never guesses.

The model's type decides; else the return annotation of the function that creates it; else the
imports of its file. A file that imports both frameworks without an annotation is rejected. Classes
are recognised by the names of their base classes. No framework is imported for this: if PyTorch is
not loaded, the model is a Keras model.

Callers: `elasticdl_module.py`.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from elasticdl.dialects.model_code import function_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elasticdl.dialects.model_code import Symbol

Framework: TypeAlias = Literal["keras", "torch"]

_FRAMEWORKS: dict[str, Framework] = {
    "keras": "keras",
    "tensorflow": "keras",
    "tf_keras": "keras",
    "torch": "torch",
}
_LIGHTNING = {"lightning", "pytorch_lightning"}
_MODELS: dict[Framework, str] = {"keras": "Model", "torch": "Module"}


def framework_of(model: Symbol, modules: Iterable[ModuleType]) -> Framework | None:
    """Return the framework of a model; None if it is unclear because its files import both.

    Args:
        model: A model, its class, or a function that creates one.
        modules: The model's files.
    """
    if "torch" not in sys.modules:
        return "keras"
    framework = framework_of_model(model.value) or _framework_of_annotation(model.value)
    if framework:
        return framework
    imported = {_framework_of_import(value) for module in modules for value in _values(module)}
    imported.discard(None)
    if imported == {"torch"}:
        return "torch"
    return None if "torch" in imported else "keras"


def framework_of_model(value: Any) -> Framework | None:
    """Return the framework of a model or of a model class; None if it is neither."""
    kind = value if inspect.isclass(value) else type(value)
    for ancestor in inspect.getmro(kind):
        framework = _FRAMEWORKS.get(_root(ancestor))
        if framework and ancestor.__name__ == _MODELS[framework]:
            return framework
    return None


def is_lightning(value: Any, name: str) -> bool:
    """Return whether a class descends from a class of Lightning, in either of its packages.

    Args:
        value: A class or an object.
        name: Name of the Lightning class, such as `LightningModule`.
    """
    kind = value if inspect.isclass(value) else type(value)
    return any(_is_lightnings(k) and k.__name__ == name for k in inspect.getmro(kind))


def overridden(kind: type, name: str) -> bool:
    """Return whether user code overrides a method of a Lightning class."""
    for ancestor in inspect.getmro(kind):
        if name in vars(ancestor):
            return not _is_lightnings(ancestor) and _root(ancestor) != "torch"
    return False


def _is_lightnings(kind: type) -> bool:
    return _root(kind) in _LIGHTNING


def is_of_torch(value: Any) -> bool:
    """Return whether a function, a class, or an object's class is defined by PyTorch."""
    return "torch" in (_root(value), _root(type(value)))


def _framework_of_annotation(function: Any) -> Framework | None:
    plain = function_of(function)
    annotation = getattr(plain, "__annotations__", {}).get("return")
    if not isinstance(annotation, str):
        return framework_of_model(annotation)
    carrier = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        hints = typing.get_type_hints(carrier, globalns=getattr(plain, "__globals__", {}))
    except Exception:  # noqa: BLE001 - a name that is imported for type checkers only
        last = annotation.rpartition(".")[2]
        return next((f for f, name in _MODELS.items() if name == last), None)
    return framework_of_model(hints["it"])


def _framework_of_import(value: Any) -> Framework | None:
    if isinstance(value, ModuleType):
        return _FRAMEWORKS.get(value.__name__.partition(".")[0])
    if inspect.isclass(value):
        # Also a class from the file itself or from another file of the zoo.
        roots = map(_root, inspect.getmro(value))
        return next((_FRAMEWORKS[root] for root in roots if root in _FRAMEWORKS), None)
    return _FRAMEWORKS.get(_root(value) or _root(type(value)))


def _values(module: ModuleType) -> list[Any]:
    return [value for name, value in vars(module).items() if not name.startswith("__")]


def _root(value: Any) -> str:
    module = getattr(value, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""
