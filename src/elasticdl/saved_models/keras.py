"""Loads what Keras 3 wrote: .keras, .h5, and JSON with weights.

The model comes uncompiled, whatever it was compiled with: in files of Keras 3 the optimizer's
variables are not those of the loaded model, and short names of losses cannot be read back.
`compile_options.py` says with what to train.

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
from elasticdl.saved_models.numbers import Weight
from elasticdl.saved_models.scan import scan
from elasticdl.saved_models.trust import NONE, Trust
from elasticdl.saved_models.weights import bounded

if TYPE_CHECKING:
    from elasticdl.saved_models.model_file import ModelFile


def load(
    file: ModelFile,
    weights: ModelFile | None = None,
    *,
    custom_objects: Mapping[str, Any] | None = None,
    trust: Trust = NONE,
) -> keras.Model:
    """Return the model of a file that Keras 3 wrote, not compiled.

    Args:
        file: A whole model or an architecture.
        weights: Where the weights of an architecture are; None initializes them.
        custom_objects: What the file's classes and functions of other modules are.
        trust: What may run.

    Raises:
        ModelFileError: The file would run something, or cannot be loaded.
    """
    scan(file, known=custom_objects or (), trust=trust)
    objects = dict(custom_objects or {})
    if file.kind == "weights":
        raise ModelFileError(weights_only(file))
    with telling(file), bounded(keras.layers.Layer, file, held_bytes(file, weights)):
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
    """Return how many bytes there are for the weights of a model; see `bounds.py`."""
    if file.kind == "architecture":
        return bounds.MAX_BYTES if weights is None else weights.num_bytes
    return file.num_bytes


def load_weights(model: Any, file: ModelFile, weights: ModelFile) -> None:
    """Give a model the weights of another file.

    Args:
        model: Of Keras 3 or of tf_keras.
        file: Where it is from, for errors.
        weights: Weights alone, or a whole model whose weights to take.

    Raises:
        ModelFileError: They are of another library or of another model.
    """
    if weights.library is not None and weights.library != file.library:
        raise ModelFileError(
            f"{weights.path} has weights of Keras {weights.version}, {file.path} an architecture "
            f"of Keras {file.version or '3'}; they are arranged differently. Save both from one "
            "model."
        )
    if weights.format not in {"h5", "keras"}:
        raise ModelFileError(
            f"{weights.path} is no file of weights, but {weights.format}. Expected what "
            "`model.save_weights('model.weights.h5')` writes."
        )
    if weights.format == "keras":
        name = "model.keras"
    else:
        alone = weights.kind == "weights" and weights.layout == "layers"
        name = "model.weights.h5" if alone else "model.h5"
    with called(weights.path, name) as path, telling(weights, f" into the model of {file.path}"):
        model.load_weights(path)


def weights_of(model: keras.Model) -> Iterator[Weight]:
    """Yield the weights of a loaded model, one by one."""
    # The innermost layer that has a weight comes last.
    owners = {id(v): layer for layer in model._flatten_layers() for v in layer.weights}  # noqa: SLF001 - as Keras itself goes through them
    for variable in model.weights:
        owner = type(owners.get(id(variable), model)).__module__
        is_kerass = owner.partition(".")[0] == "keras"
        values = keras.ops.convert_to_numpy(variable)
        yield Weight(variable.path, values, not variable.trainable and not is_kerass)


@contextlib.contextmanager
def called(path: Path, name: str) -> Iterator[str]:
    """Give a file another name for a while: libraries choose how to read it by that."""
    with tempfile.TemporaryDirectory(dir=scratch.folder()) as folder:
        link = Path(folder) / name
        link.symlink_to(path.resolve())
        yield str(link)


@contextlib.contextmanager
def telling(file: ModelFile, what: str = "") -> Iterator[None]:
    """Turn what a library raises into an error that names the file."""
    try:
        yield
    except ModelFileError:
        raise
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise ModelFileError(
            f"{file} cannot be loaded{what}: {said[:500]}\n"
            "  Classes and functions of its own have to be declared in custom_objects; weights "
            "have to be those of this model."
        ) from error


def weights_only(file: ModelFile) -> str:
    """Return what to say of weights that are given as a model."""
    return (
        f"{file.path} has weights only: nothing in it says of which model. Name the architecture "
        "as well: model_architecture: <what model.to_json() returned>, model_weights: "
        f"{file.path.name}."
    )
