r"""Inspection of model files: recognises a file by its content, never by its name.

    first bytes          format                                         source of the version
    \x89HDF              h5: Keras, whole or weights only               keras_version, configs
    PK                   .keras, PyTorch, TorchScript, torch.export     metadata.json in .keras
    {                    JSON: a Keras architecture                     keras_version, or module
    a folder             SavedModel                                     Keras' metadata in it
    pickle of PyTorch    PyTorch before 1.6                             none

The names of the members tell the formats of zip archives (`PK`) apart. Inspection imports no
framework and unpickles nothing. `scan.py` decides whether code in a file may run;
`ModelFile.library` determines the loader.

Callers: dialects, the loaders of this folder.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from elasticdl import user_files
from elasticdl.errors import MissingExtraError, ModelFileError
from elasticdl.saved_models import archive, bounds, saved_model, torch_sizes

if TYPE_CHECKING:
    import zipfile

MAX_CONFIG_BYTES = 64 * 2**20
_HDF5 = b"\x89HDF\r\n\x1a\n"
_ZIP = b"PK\x03\x04"
# Start of files from PyTorch before 1.6: a pickled number of ten bytes.
_OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_GIT_LFS = b"version https://git-lfs"
_FIRST_OF_KERAS_3 = 3
_KERAS_WEIGHTS = "model.weights.h5"

Format: TypeAlias = Literal[
    "h5",
    "keras",
    "json",
    "saved_model",
    "torch_zip",
    "torch_pickle",
    "torchscript",
    "torch_export",
]
Library: TypeAlias = Literal["keras", "tf_keras", "torch"]


@dataclass(frozen=True)
class ModelFile:
    """Properties of a model file, as recorded in its content.

    Attributes:
        path: Path of the file.
        format: File format.
        library: Library that loads it; None for weights that do not record it.
        version: Version of the library that wrote it; empty if it is not recorded.
        kind: A whole model, an architecture without weights, or weights alone.
        architecture: Keras config, as JSON; None if there is none.
        training_config: How the model was compiled, as JSON; None if it is not recorded.
        num_bytes: Size; for a folder, the size of all its content.
        num_values: Number of values in its weights; None if it is not recorded.
        layout: How an h5 file arranges its weights: `legacy` as Keras 1 and 2 do, `layers` as
            Keras 3 does, in groups of layers and variables.
        globals: Dotted names of the classes and functions that the objects in a PyTorch file
            import.
    """

    path: Path
    format: Format
    library: Library | None
    version: str = ""
    kind: Literal["model", "architecture", "weights"] = "model"
    architecture: Mapping[str, Any] | None = None
    training_config: Mapping[str, Any] | None = None
    num_bytes: int = 0
    num_values: int | None = None
    layout: Literal["legacy", "layers"] = "legacy"
    globals: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return path, format, library and version, for logs and errors."""
        names = {"keras": "Keras", "tf_keras": "Keras", "torch": "PyTorch"}
        library = names.get(self.library or "", "unknown library")
        return f"{self.path} ({self.format} of {library}{self.version and ' ' + self.version})"


def identify(path: Path | str) -> ModelFile:
    """Return the properties of a model file or folder.

    Raises:
        ModelFileError: It is missing, empty, truncated, too large, or not a model.
        MissingExtraError: It is an h5 file, and the library that reads these is not installed.
    """
    path = Path(path)
    if not path.exists():
        raise ModelFileError(_not_there(path))
    if path.is_dir():
        return _folder(path)
    if (kind := user_files.special_kind(path)) is not None:
        raise ModelFileError(f"{path} is {kind}; expected the file or folder of a saved model.")
    size = path.stat().st_size
    if size == 0:
        raise ModelFileError(f"{path} is empty. Save the model again, or copy the file again.")
    if size > bounds.MAX_BYTES:
        raise ModelFileError(f"{path} has {size:,} bytes; expected at most {bounds.MAX_BYTES:,}.")
    with path.open("rb") as file:
        head = file.read(512)
    if head.startswith(_HDF5):
        found = _h5(path)
    elif head.startswith(_ZIP):
        found = _zip(path)
    elif head.lstrip()[:1] == b"{":
        found = _json(path)
    elif head.startswith(_OLD_TORCH):
        torch_sizes.check_old(path, size)
        found = ModelFile(path, "torch_pickle", "torch")
    else:
        raise ModelFileError(_no_model(path, head))
    return replace(found, num_bytes=size)


def sha256_of(path: Path) -> str:
    """Return the digest of a file, or of a folder: of its sorted relative names and contents.

    The digest of a folder is the SHA-256 of a line `<sha256 of the file>  <name>` for each file in
    it, as `sha256sum` prints it: `(cd FOLDER && find * -type f | LC_ALL=C sort | xargs sha256sum)`.
    """
    if not path.is_dir():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    names = sorted(each.relative_to(path).as_posix() for each in path.rglob("*") if each.is_file())
    lines = "".join(f"{sha256_of(path / name)}  {name}\n" for name in names)
    return hashlib.sha256(lines.encode()).hexdigest()


# --- h5 ------------------------------------------------------------------------------------------


def _h5(path: Path) -> ModelFile:
    try:
        import h5py  # noqa: PLC0415 - only where there is such a file

        from elasticdl.saved_models import hdf5  # noqa: PLC0415 - imports h5py
    except ModuleNotFoundError as error:
        raise MissingExtraError("h5py", "specs", f"Reading {path}") from error

    try:
        with h5py.File(path, "r") as file:
            num_values = hdf5.num_values(file, path, path.stat().st_size)
            config, training = (
                _json_attribute(file, name, path) for name in ("model_config", "training_config")
            )
            weights = file.get("model_weights", file)
            version = _text(file.attrs.get("keras_version", weights.attrs.get("keras_version", "")))
            legacy = "layer_names" in weights.attrs
            names = set(file)
    except OSError as error:
        raise ModelFileError(
            f"{path}: this h5 file is truncated or damaged: {error}. Save or copy it again."
        ) from error
    if config is None:
        if not legacy and not names & {"layers", "vars", "_layer_checkpoint_dependencies"}:
            raise ModelFileError(
                f"{path} is an h5 file, but Keras did not write it: it has no model_config and no "
                "weights of layers. Pass what `model.save` wrote."
            )
        return ModelFile(
            path,
            "h5",
            _library_of(version) if version else None,
            version,
            kind="weights",
            num_values=num_values,
            layout="legacy" if legacy else "layers",
        )
    return ModelFile(
        path,
        "h5",
        _library_of(version),
        version,
        architecture=config,
        training_config=training,
        num_values=num_values,
    )


def _json_attribute(file: Any, name: str, path: Path) -> dict[str, Any] | None:
    value = file.attrs.get(name)
    if value is None:
        return None
    return _config(_text(value), f"{path}: {name}")


def _text(value: Any) -> str:
    """Return an h5 file's attribute, which may be bytes or a string, as a string."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# --- zip archives --------------------------------------------------------------------------------


def _zip(path: Path) -> ModelFile:
    size = path.stat().st_size
    with archive.opened(path) as opened:
        names = set(opened.namelist())
        if "config.json" in names and "metadata.json" in names:
            return _keras(opened, names, path)
        if any(name.split("/")[-1] == "archive_format" for name in names) or (
            "serialized_exported_program.json" in names
        ):
            torch_sizes.check_export(opened, path, size)
            return ModelFile(path, "torch_export", "torch")
        pickled = next((name for name in names if name.split("/")[1:] == ["data.pkl"]), None)
        if pickled is None:
            raise ModelFileError(
                f"{path} is a zip archive, but not a model: neither Keras (config.json) nor "
                "PyTorch (data.pkl) wrote it. Pass the model file itself."
            )
        torch_sizes.check_objects(opened, path, size)
        folder = pickled.split("/")[0]
        if f"{folder}/constants.pkl" in names or any(
            name.startswith(f"{folder}/code/") for name in names
        ):
            return ModelFile(path, "torchscript", "torch")
        objects = archive.member(opened, pickled, path)
    needed = archive.globals_of(objects, path)
    # A state_dict is an OrderedDict; a checkpoint is a dict that contains one.
    alone = archive.starts_with_a_dict(objects) or needed[:1] == ("collections.OrderedDict",)
    return ModelFile(
        path, "torch_zip", "torch", kind="weights" if alone else "model", globals=needed
    )


def _keras(opened: zipfile.ZipFile, names: set[str], path: Path) -> ModelFile:
    texts = [
        archive.member(opened, name, path).decode("utf-8", "replace")
        for name in ("config.json", "metadata.json")
    ]
    config, about = (_config(text, f"{path}: its config") for text in texts)
    if _KERAS_WEIGHTS not in names:
        # Weights stored as NumPy arrays would be unpickled.
        others = sorted(name for name in names if name.startswith("model.weights"))
        raise ModelFileError(
            f"{path}: there is no {_KERAS_WEIGHTS} in it"
            f"{', but ' + ', '.join(others) if others else ''}. Save the model again with "
            "`model.save('model.keras')`."
        )
    try:
        import h5py  # noqa: PLC0415 - only where there is such a file

        from elasticdl.saved_models import hdf5  # noqa: PLC0415 - imports h5py
    except ModuleNotFoundError as error:
        raise MissingExtraError("h5py", "specs", f"Reading {path}") from error

    info = opened.getinfo(_KERAS_WEIGHTS)
    with opened.open(info) as member, h5py.File(member, "r") as file:
        num_values = hdf5.num_values(file, path, path.stat().st_size)
    version = str(about.get("keras_version", ""))
    training = config.get("compile_config")
    return ModelFile(
        path,
        "keras",
        _library_of(version),
        version,
        architecture={key: value for key, value in config.items() if key != "compile_config"},
        training_config=training if isinstance(training, Mapping) else None,
        num_values=num_values,
    )


# --- text ----------------------------------------------------------------------------------------


def _json(path: Path) -> ModelFile:
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise ModelFileError(
            f"{path} is text of {path.stat().st_size:,} bytes; expected at most "
            f"{MAX_CONFIG_BYTES:,} for an architecture."
        )
    config = _config(path.read_text(encoding="utf-8", errors="replace"), str(path))
    if "class_name" not in config or "config" not in config:
        raise ModelFileError(
            f"{path} is JSON, but not of a model. Expected what `model.to_json()` returns, with "
            "class_name and config."
        )
    version = str(config.get("keras_version", ""))
    training = config.get("compile_config")
    return ModelFile(
        path,
        "json",
        _library_of(version) if version or "module" not in config else "keras",
        version,
        kind="architecture",
        architecture={key: value for key, value in config.items() if key != "compile_config"},
        training_config=training if isinstance(training, Mapping) else None,
    )


def _config(text: str, what: str) -> dict[str, Any]:
    if len(text) > MAX_CONFIG_BYTES:
        raise ModelFileError(
            f"{what} is text of {len(text):,} characters; expected at most {MAX_CONFIG_BYTES:,}."
        )
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ModelFileError(
            f"{what} is not complete JSON ({error}). Save the model again, or copy the file again."
        ) from error
    except RecursionError as error:
        raise ModelFileError(f"{what} is nested too deeply for a model.") from error
    if not isinstance(config, dict):
        raise ModelFileError(f"{what} is a {type(config).__name__}; expected a config of Keras.")
    return config


def _library_of(version: str) -> Library:
    """Return the library that loads files of this Keras version; tf_keras if it is unknown."""
    major = re.match(r"[0-9]{1,4}(?=\.|$)", version)
    return "keras" if major and int(major[0]) >= _FIRST_OF_KERAS_3 else "tf_keras"


# --- folders -------------------------------------------------------------------------------------


def _folder(path: Path) -> ModelFile:
    if not (path / saved_model.GRAPH_FILE).is_file():
        names = sorted(each.name for each in path.iterdir())
        raise ModelFileError(
            f"{path} is a folder without {saved_model.GRAPH_FILE}, so it is not a SavedModel. It "
            f"has: {', '.join(names[:5]) or 'nothing'}. Pass the model file in it."
        )
    size = sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    if size > bounds.MAX_BYTES:
        raise ModelFileError(f"{path} has {size:,} bytes; expected at most {bounds.MAX_BYTES:,}.")
    model = saved_model.read(path)
    constant_bytes = sum(function.constant_bytes for function in model.functions)
    bounds.check(path, "a constant of its graph, with the others,", constant_bytes, size)
    layers = model.layers
    if not layers:
        raise ModelFileError(
            f"{path} was saved for serving: it contains no Keras model that could be trained "
            "further. Save the model with tf_keras' `model.save(folder)`, or as a .keras file."
        )
    if not (path / "variables").is_dir():
        raise ModelFileError(
            f"{path} has no folder `variables`: its weights are missing. Copy the whole folder."
        )
    training = layers[0].get("training_config")
    return ModelFile(
        path,
        "saved_model",
        "tf_keras",
        str(layers[0].get("keras_version", "")),
        training_config=training if isinstance(training, Mapping) else None,
        num_bytes=size,
    )


# --- errors --------------------------------------------------------------------------------------


def _not_there(path: Path) -> str:
    if not path.parent.is_dir():
        return f"{path}: there is no folder {path.parent}."
    names = sorted(each.name for each in path.parent.iterdir())
    near = difflib.get_close_matches(path.name, names, n=1)
    if near:
        return f"{path} does not exist. Did you mean {path.parent / near[0]}?"
    return f"{path} does not exist. {path.parent} has: {', '.join(names[:5]) or 'nothing'}."


def _no_model(path: Path, head: bytes) -> str:
    formats = (
        "Expected a file saved by Keras (.h5, .keras, JSON, a SavedModel folder) or PyTorch (.pt, "
        ".pt2)."
    )
    if head.startswith(_GIT_LFS):
        return f"{path} is a Git LFS pointer, not the file itself. Run `git lfs pull`."
    if head[:1] == b"\x80":
        return f"{path} is a Python pickle, but PyTorch did not write it. {formats}"
    if head.lstrip()[:1] == b"<":
        return f"{path} is a web page (or XML), not a model. Download the file itself. {formats}"
    # Without its content: a spec may name any file that this user can read, and errors are logged.
    return f"{path} is not a model: neither Keras nor PyTorch wrote it. {formats}"
