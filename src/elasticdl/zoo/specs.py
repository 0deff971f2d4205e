"""Finds and copies the files of a spec, a YAML file that describes a saved model.

A spec names model files and code. The model files are data and may be anywhere. Code is taken from
the zoo only; if the user names no zoo, `folder_of` chooses it: the spec's folder, or a folder above
it that also holds the code the spec names, but never one above the working directory.
`dialects/saved_spec.py` interprets the keys; this module finds the files, and copies them beside a
trained model.

Callers: `load_model_code.py` and `snapshot.py`, for a `model_def` that is a file rather than a
dotted name.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl import user_files
from elasticdl.dialects.saved_spec import SavedSpec, read_spec
from elasticdl.dialects.source_lines import shown_path
from elasticdl.errors import DefinitionError, MissingExtraError, UsageError
from elasticdl.saved_models.file_format import identify

if TYPE_CHECKING:
    from elasticdl.dialects.saved_spec import CustomObject
    from elasticdl.zoo.folder import Zoo

_FILES_FOLDER = "model_files"


def is_spec(model_def: str) -> bool:
    """Return whether a `model_def` names a spec: a file that ends in `.yml` or `.yaml`."""
    return model_def.endswith((".yml", ".yaml"))


def folder_of(path: Path) -> Path:
    """Return the folder to use as a spec's zoo, if the user names none.

    This is the spec's own folder, unless the spec names code outside of it (`path: ../loss.py`).
    Then it is the nearest folder that holds both the spec and the code, provided that this folder
    is in the working directory.

    Args:
        path: The spec's file; it need not exist.
    """
    own, working = path.parent, Path.cwd()
    try:
        wanted = read_spec(path, shown_path(str(path))).custom_objects
    except (DefinitionError, MissingExtraError):
        # Reported when the spec is used, with everything that is wrong in it.
        return own
    codes = [(own / each.path).resolve() for each in wanted if each.path.endswith(".py")]
    together = Path(os.path.commonpath([own.resolve(), *(code.parent for code in codes)]))
    is_contained = together.is_relative_to(working) and all(code.is_file() for code in codes)
    return together if is_contained and together != own.resolve() else own


def refuse_special(path: Path, spec: str) -> None:
    """Reject a spec that is not a regular file; one that does not exist is accepted here.

    A pipe, for example, cannot be read a second time when the job resumes.

    Args:
        path: The spec's file.
        spec: The spec as the user wrote it, for the error.

    Raises:
        UsageError: It is a folder, a pipe, a socket or a device.
    """
    kind = user_files.special_kind(path)
    if kind is not None:
        raise UsageError(
            f"--spec={spec} is {kind}; expected a YAML file. A spec is read more than once, also "
            "when a job resumes: write the content to a file and pass that."
        )


def open_spec(zoo: Zoo, model_def: str) -> SavedSpec:
    """Read the spec that `model_def` names in a zoo, and check its keys.

    Raises:
        UsageError: There is no such file, or it is outside of the zoo.
        DefinitionError: It is not a spec.
    """
    path = spec_path(zoo, model_def)
    return read_spec(path, shown_path(str(path)))


def spec_path(zoo: Zoo, model_def: str) -> Path:
    """Return the path of the spec that `model_def` names in a zoo.

    Raises:
        UsageError: There is no such file, or it is outside of the zoo.
    """
    path = (zoo.folder / model_def).resolve()
    if not path.is_relative_to(zoo.folder.resolve()):
        raise UsageError(
            f"--spec={model_def} is outside of {zoo.name}. Pass a folder that contains it: "
            "--model_zoo=DIR"
        )
    refuse_special(path, model_def)
    if not path.is_file():
        folder = path.parent if path.parent.is_dir() else zoo.folder
        there = ", ".join(sorted(p.name for p in folder.glob("*.y*ml"))) or "no YAML files"
        raise UsageError(
            f"--spec={model_def}: there is no such file; {shown_path(str(folder))} has {there}."
        )
    return path


def dotted_name(zoo: Zoo, model_def: str, wanted: CustomObject) -> str:
    """Return the dotted name under which a spec's custom object is imported.

    Args:
        zoo: The spec's zoo.
        model_def: The spec's path in the zoo.
        wanted: The custom object: from a Python file of the zoo, or from an installed package.

    Raises:
        DefinitionError: It is a name of Python's standard library.
        UsageError: Its file is outside of the zoo, or is not a Python file.
    """
    if not wanted.path.endswith(".py"):
        package = wanted.path.partition(".")[0]
        in_zoo = (zoo.folder / package).is_dir() or (zoo.folder / f"{package}.py").is_file()
        if package in sys.stdlib_module_names and not in_zoo:
            # Keras calls the names in a model file with arguments from the file: os.system as well.
            raise DefinitionError(
                f"{wanted.where}: {wanted.key} is {wanted.path}.{wanted.value}, which belongs to "
                "Python itself and is not a layer, loss or metric. Specify the Python file that "
                "defines it, such as path: loss.py, or an installed package of models."
            )
        return f"{wanted.path}.{wanted.value}"
    file = (spec_path(zoo, model_def).parent / wanted.path).resolve()
    root = zoo.folder.resolve()
    if not file.is_relative_to(root):
        raise UsageError(
            f"{wanted.where}: {wanted.path} is outside of {shown_path(str(root))}. Code is loaded "
            "from the folder of the spec, and from beside it only within the current folder: run "
            "the command in a folder that contains both, pass that folder (--model_zoo=DIR), or "
            "move the file."
        )
    return ".".join([*file.relative_to(root).with_suffix("").parts, wanted.value])


def copy_spec(zoo: Zoo, model_def: str, destination: Path) -> None:
    """Copy a spec and the model files that it names; the copied spec names the copied files.

    Args:
        zoo: The spec's zoo.
        model_def: The spec's path in the zoo.
        destination: Target folder.

    Raises:
        UsageError: There is no such spec.
        DefinitionError: It is not a spec, or a file it names is missing or not a regular file.
        ModelFileError: A folder it names is not a SavedModel.
        OSError: A file cannot be written.
    """
    spec = open_spec(zoo, model_def)
    target = destination / model_def
    target.parent.mkdir(parents=True, exist_ok=True)
    copies: dict[str, str] = {}
    for key, file in spec.files.items():
        copy = destination / _FILES_FOLDER / f"{key}{file.suffix}"
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            if file.is_dir():
                # A spec may name any folder, even the root of the disk: inspect it first.
                identify(file)
                copy_folder(file, copy)
            else:
                _check_file(file, f"{spec.spec.where(key)}: {key}")
                shutil.copyfile(file, copy)
        except FileNotFoundError as error:
            raise DefinitionError(f"{spec.spec.where(key)}: {key}: there is no {file}.") from error
        copies[key] = os.path.relpath(copy, target.parent)
    target.write_text(_as_yaml(spec.values_with(copies)), encoding="utf-8")


def _check_file(file: Path, where: str) -> None:
    kind = user_files.special_kind(file)
    if kind is not None:
        raise DefinitionError(f"{where}: {file} is {kind}; expected the file of a saved model.")


def copy_folder(folder: Path, destination: Path) -> None:
    """Copy the regular files of a folder; links to folders are left out, as they may lead anywhere.

    Raises:
        OSError: A file cannot be read or written.
    """
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            copy = destination / file.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def _as_yaml(values: Mapping[str, Any]) -> str:
    try:
        import yaml  # noqa: PLC0415 - only for a copy of a spec
    except ModuleNotFoundError as error:
        raise MissingExtraError("yaml", "specs", "Copying a spec") from error
    text: str = yaml.safe_dump(dict(values), sort_keys=False)
    return text
