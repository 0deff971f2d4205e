"""Reads and checks the spec of a saved model: a section `model` in YAML, with IBM FL's keys.

    model:
      name: KerasFLModel                    or TensorFlowFLModel, PytorchFLModel
      path: ibmfl.model.keras_fl_model      may be left out
      spec:
        model_name: keras-cnn
        model_definition: compiled_keras.h5
        ...
      params: {learning_rate: 0.1}          may be left out; --params overrides it

The section may be in a separate file, or in a party's config. The files that it names are not
opened here. Errors contain line numbers.

Callers: `ibmfl_spec.py`, and `zoo/specs.py`, which finds the files.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from elasticdl import user_files
from elasticdl.config_file import ConfigStruct, read_config
from elasticdl.errors import DefinitionError

Library: TypeAlias = Literal["keras", "torch"]

LIBRARIES: Mapping[str, Library] = {
    "KerasFLModel": "keras",
    "TensorFlowFLModel": "keras",
    "PytorchFLModel": "torch",
}
"""`name` in the section `model` -> library of the model."""

PATHS: Mapping[str, str] = {
    "ibmfl.model.keras_fl_model": "KerasFLModel",
    "ibmfl.model.tensorflow_fl_model": "TensorFlowFLModel",
    "ibmfl.model.pytorch_fl_model": "PytorchFLModel",
}
"""`path` in the section `model` -> `name` in that section."""

_KNOWN_ELSEWHERE = (
    "SklearnSGDFLModel",
    "KMeansFLModel",
    "NaiveBayesFLModel",
    "DTFLModel",
    "PrejRemoverFLModel",
    "RLlibFLModel",
    "Doc2VecFLModel",
)
_SECTION_KEYS = ("name", "path", "spec", "params", "info", "trust")
# Two names of one section: IBM FL's documents use the second, its code reads the first.
_OPTIONS = ("compile_model_options", "compiled_options")
_FILES = ("model_definition", "model_architecture", "model_weights")
_SPEC_KEYS: Mapping[Library, Sequence[str]] = {
    "keras": ("model_name", *_FILES, "custom_objects", *_OPTIONS),
    "torch": (
        "model_name",
        "model_definition",
        "model_weights",
        "custom_objects",
        "optimizer",
        "loss_criterion",
        "criterion",
    ),
}
# Common mistakes -> the key that is meant.
_MEANT = {"compile_options": "compile_model_options"}
_COMPILE_KEYS = ("optimizer", "loss", "metrics", "loss_weights", "weighted_metrics")
_OBJECT_KEYS = ("key", "value", "path")


@dataclass(frozen=True)
class CustomObject:
    """A user's function or class that a saved model needs, from `custom_objects` of a spec.

    Attributes:
        key: Name of the object in the model file.
        value: Name of the function or class in the user's module.
        path: The module: a Python file, relative to the spec, or a dotted name.
        where: `file:line` of its entry in the spec.
    """

    key: str
    value: str
    path: str
    where: str


@dataclass(frozen=True, eq=False)
class SavedSpec:
    """Description of a saved model: the section `model` of a YAML file, with IBM FL's keys.

    Attributes:
        library: Library of the model.
        section: The section `model`, as a config.
        files: Key -> absolute path of a file or folder: `model_definition`, or the keys of an
            architecture and its weights.
        custom_objects: Code that the model needs.
        where: `file:line` of the section `model`.
    """

    library: Library
    section: ConfigStruct
    files: Mapping[str, Path]
    custom_objects: tuple[CustomObject, ...]
    where: str

    @property
    def params(self) -> Mapping[str, Any]:
        """Values of `params` in the section `model`, by name; empty if it has none."""
        params = self.section.get("params")
        return params.to_dict() if isinstance(params, ConfigStruct) else {}

    @property
    def spec(self) -> ConfigStruct:
        """The section `spec` within the section `model`."""
        spec: ConfigStruct = self.section.spec
        return spec

    @property
    def options_key(self) -> str:
        """Key in the section `spec` under which the optimizer, loss and metrics are."""
        return _options_key(self.spec)

    @property
    def options(self) -> Mapping[str, Any] | None:
        """Optimizer, loss and metrics in the section `spec`; None if it has none."""
        options = self.spec.get(self.options_key)
        return options.to_dict() if isinstance(options, ConfigStruct) else None

    def values_with(self, files: Mapping[str, str]) -> dict[str, Any]:
        """Return the spec as a dict `{"model": ...}`, with other paths for its files.

        A caller that copies the files writes this dict beside the copies.

        Args:
            files: Key in the attribute `files` -> new path of that file.
        """
        values = self.section.to_dict()
        return {"model": {**values, "spec": {**values["spec"], **files}}}


def read_spec(path: Path, shown: str) -> SavedSpec:
    """Read the description of a saved model (its spec) from a YAML file.

    Args:
        path: The YAML file; other paths are relative to its folder.
        shown: Name of the file in errors.

    Raises:
        DefinitionError: The file is not YAML, or its keys are not those of a spec.
    """
    try:
        text = user_files.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise DefinitionError(f"{shown}: the file cannot be read: {reason}.") from error
    config = read_config(text, shown)
    section = config.model if "model" in config else config
    if section is config and not any(key in _SECTION_KEYS for key in config):
        # Its content is not shown: it may be any file.
        raise DefinitionError(
            f"{shown}: this is not a spec of a saved model; expected the section `model`, with "
            f"{', '.join(_SECTION_KEYS)}."
        )
    return spec_of(section, path.parent)


def spec_of(section: Any, folder: Path) -> SavedSpec:
    """Check the section `model` of a config and return it as a spec.

    Args:
        section: `model` of a config.
        folder: Folder that relative paths start from.

    Raises:
        DefinitionError: The keys are not those of a spec.
    """
    if not isinstance(section, ConfigStruct):
        raise DefinitionError(
            f"The model section is {section!r}; expected name, and spec with model_definition."
        )
    _refuse_unknown(section, _SECTION_KEYS, "the section `model`")
    library = LIBRARIES[_name_of(section)]
    if not isinstance(section.get("params"), (ConfigStruct, type(None))):
        raise DefinitionError(
            f"{section.where('params')}: params is {section.get('params')!r}; expected names and "
            "values, such as `params: {learning_rate: 0.1}`."
        )
    spec = section.get("spec")
    if not isinstance(spec, ConfigStruct):
        raise DefinitionError(
            f"{section.where('spec')}: spec is {spec!r}; expected keys and values, such as "
            "`model_definition: model.h5`."
        )
    _refuse_unknown(spec, _SPEC_KEYS[library], f"the spec of a {_name_of(section)}")
    _check_options(spec)
    return SavedSpec(
        library=library,
        section=section,
        files=_files(spec, library, folder),
        custom_objects=tuple(_custom_objects(spec)),
        where=section.where(),
    )


def _options_key(spec: ConfigStruct) -> str:
    return next((key for key in _OPTIONS if key in spec), _OPTIONS[0])


def _check_options(spec: ConfigStruct) -> None:
    key = _options_key(spec)
    if key not in spec:
        return
    if all(each in spec for each in _OPTIONS):
        raise DefinitionError(
            f"{spec.where(_OPTIONS[1])}: the spec has {' and '.join(_OPTIONS)}, two names for the "
            "same section. Remove one of them."
        )
    options = spec.get(key)
    if not isinstance(options, ConfigStruct):
        raise DefinitionError(
            f"{spec.where(key)}: {key} is {options!r}; expected optimizer, loss and metrics."
        )
    _refuse_unknown(options, _COMPILE_KEYS, key)


def _name_of(section: ConfigStruct) -> str:
    name, path = section.get("name"), section.get("path")
    if name is None and path in PATHS:
        return PATHS[path]
    if name not in LIBRARIES:
        known = ", ".join(LIBRARIES)
        if name in _KNOWN_ELSEWHERE:
            raise DefinitionError(
                f"{section.where('name')}: models of the kind {name} are not supported; expected "
                f"one of {known}."
            )
        near = difflib.get_close_matches(str(name), LIBRARIES, n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise DefinitionError(
            f"{section.where('name')}: name is {name!r}; expected one of {known}.{meant}"
        )
    if path is not None and PATHS.get(path) != name:
        expected = next(each for each, other in PATHS.items() if other == name)
        raise DefinitionError(
            f"{section.where('path')}: path is {path!r}; expected {expected!r}, the module of "
            f"{name}. Your own classes cannot be named here."
        )
    return str(name)


def _files(spec: ConfigStruct, library: Library, folder: Path) -> dict[str, Path]:
    given = {key: spec.get(key) for key in _FILES if spec.get(key) is not None}
    for key, value in given.items():
        if not isinstance(value, str) or not value:
            raise DefinitionError(f"{spec.where(key)}: {key} is {value!r}; expected a path.")
    whole = "model_definition" in given
    if library == "keras":
        parts = {"model_architecture", "model_weights"} & given.keys()
        if whole and parts:
            raise DefinitionError(
                f"{spec.where('model_definition')}: model_definition is the whole model and "
                f"excludes {' and '.join(sorted(parts))}. Remove one or the other."
            )
        if not whole and len(parts) != 2:  # noqa: PLR2004 - architecture and weights
            raise DefinitionError(
                f"{spec.where()}: the spec names no model. Give model_definition, or "
                "model_architecture and model_weights."
            )
    elif not whole:
        raise DefinitionError(
            f"{spec.where()}: the spec names no model. Give model_definition, such as "
            "`model_definition: model.pt`."
        )
    return {key: (folder / Path(value).expanduser()).resolve() for key, value in given.items()}


def _custom_objects(spec: ConfigStruct) -> list[CustomObject]:
    given = spec.get("custom_objects") or []
    where = spec.where("custom_objects")
    if not isinstance(given, list):
        raise DefinitionError(
            f"{where}: custom_objects is {given!r}; expected a list of key, value and path, such "
            "as `- {key: my_loss, value: my_loss, path: loss.py}`."
        )
    found = []
    for each in given:
        entry = each.to_dict() if isinstance(each, ConfigStruct) else each
        if not isinstance(entry, Mapping) or set(entry) != set(_OBJECT_KEYS):
            raise DefinitionError(
                f"{where}: an entry of custom_objects is {entry!r}; expected key (its name in the "
                "model file), value (its name in the code) and path (the Python file)."
            )
        if not all(isinstance(value, str) for value in entry.values()):
            raise DefinitionError(f"{where}: {entry!r}: key, value and path must be strings.")
        found.append(CustomObject(**entry, where=f"{where}: custom_objects"))
    return found


def _refuse_unknown(section: ConfigStruct, known: Sequence[str], what: str) -> None:
    for key in section:
        if key in known:
            continue
        near = _MEANT.get(key) or next(iter(difflib.get_close_matches(key, known, n=1)), None)
        meant = f" Did you mean {near}?" if near else ""
        raise DefinitionError(
            f"{section.where(key)}: {what} has no key {key!r}; expected {', '.join(known)}.{meant}"
        )
