"""Loads files written by Keras 3: .keras, .h5, and JSON with weights.

The model is always returned uncompiled: the optimizer in a Keras 3 file does not refer to the
variables of the loaded model, and Keras cannot load losses saved under short names.
`compile_options.py` provides the training settings.

Callers: dialects, in the process that trains.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from elasticdl import scratch
from elasticdl.errors import ModelFileError
from elasticdl.saved_models import bounds
from elasticdl.saved_models.finite_weights import Weight
from elasticdl.saved_models.scan import scan
from elasticdl.saved_models.trust import NONE, Trust
from elasticdl.saved_models.weight_limits import bounded

if TYPE_CHECKING:
    from elasticdl.saved_models.file_format import ModelFile


def load(
    file: ModelFile,
    weights: ModelFile | None = None,
    *,
    custom_objects: Mapping[str, Any] | None = None,
    trust: Trust = NONE,
) -> keras.Model:
    """Return the model of a Keras 3 file, not compiled.

    Args:
        file: A whole model or an architecture.
        weights: File with the weights of an architecture. None: initialize the weights.
        custom_objects: Classes and functions of other modules that the file needs, by name.
        trust: Code that may run.

    Raises:
        ModelFileError: The file would run untrusted code, or cannot be loaded.
    """
    scan(file, known=custom_objects or (), trust=trust)
    objects = dict(custom_objects or {})
    if file.kind == "weights":
        raise ModelFileError(weights_only(file))
    with naming_errors(file), bounded(keras.layers.Layer, file, held_bytes(file, weights)):
        if file.kind == "architecture":
            model = keras.models.model_from_json(
                file.path.read_text(encoding="utf-8"), custom_objects=objects
            )
        else:
            suffix = {"keras": ".keras", "h5": ".h5"}[file.format]
            with called(file.path, f"model{suffix}") as path:
                model = keras.models.load_model(
                    path,
                    custom_objects=objects,
                    compile=False,
                    safe_mode=not trust.allow_lambda,
                )
    if weights is not None:
        load_weights(model, file, weights)
    return model


def held_bytes(file: ModelFile, weights: ModelFile | None) -> int:
    """Return the size of the file with a model's weights, which limits what loading may allocate.

    Returns `bounds.MAX_BYTES` for an architecture without a file of weights.
    """
    if file.kind == "architecture":
        return bounds.MAX_BYTES if weights is None else weights.num_bytes
    return file.num_bytes


def load_weights(model: Any, file: ModelFile, weights: ModelFile) -> None:
    """Set the weights of a model from another file.

    Args:
        model: A model of Keras 3 or tf_keras.
        file: The model's file, for errors.
        weights: A file with weights alone, or a whole model whose weights are used.

    Raises:
        ModelFileError: The weights belong to another library or to another model.
    """
    if weights.library is not None and weights.library != file.library:
        raise ModelFileError(
            f"{weights.path} has weights of Keras {weights.version}, {file.path} an architecture "
            f"of Keras {file.version or '3'}; their layouts differ. Save both from one model."
        )
    if weights.format not in {"h5", "keras"}:
        raise ModelFileError(
            f"{weights.path} is not a weights file but {weights.format}. Expected the output of "
            "`model.save_weights('model.weights.h5')`."
        )
    if weights.format == "keras":
        name = "model.keras"
    else:
        alone = weights.kind == "weights" and weights.layout == "layers"
        name = "model.weights.h5" if alone else "model.h5"
    with (
        called(weights.path, name) as path,
        naming_errors(weights, f" into the model of {file.path}"),
    ):
        model.load_weights(path)


def weights_of(model: keras.Model) -> Iterator[Weight]:
    """Yield the weights of a loaded model one by one, to be checked for NaN and infinity."""
    # The innermost layer that has a weight comes last.
    owners = {id(v): layer for layer in model._flatten_layers() for v in layer.weights}  # noqa: SLF001 - as Keras itself goes through them
    for variable in model.weights:
        owner = type(owners.get(id(variable), model)).__module__
        is_kerass = owner.partition(".")[0] == "keras"
        values = keras.ops.convert_to_numpy(variable)
        yield Weight(variable.path, values, not variable.trainable and not is_kerass)


@contextlib.contextmanager
def called(path: Path, name: str) -> Iterator[str]:
    """Context manager that yields the path of a temporary link to a file, under another name.

    Keras determines a file's format from its name.

    Args:
        path: The file.
        name: Name of the link, such as `model.keras`.
    """
    with tempfile.TemporaryDirectory(dir=scratch.folder()) as folder:
        link = Path(folder) / name
        link.symlink_to(path.resolve())
        yield str(link)


@contextlib.contextmanager
def naming_errors(file: ModelFile, what: str = "") -> Iterator[None]:
    """Context manager that converts a library's exception into an error that names the file.

    Args:
        file: The file that is loaded.
        what: Text to append to "cannot be loaded" in the error: " into the model of FILE".

    Raises:
        ModelFileError: The block raised an exception.
    """
    try:
        yield
    except ModelFileError:
        raise
    except Exception as error:
        message = " ".join(str(error).split()) or type(error).__name__
        raise ModelFileError(
            f"{file} cannot be loaded{what}: {message[:500]}\n"
            "  Declare the model's own classes and functions in custom_objects; the weights must "
            "belong to this model."
        ) from error


def weights_only(file: ModelFile) -> str:
    """Return the error message for a file that has weights but no architecture."""
    return (
        f"{file.path} contains only weights, no architecture. Specify the architecture as well: "
        f"model_architecture: <what model.to_json() returned>, model_weights: {file.path.name}."
    )
