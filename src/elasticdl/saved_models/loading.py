"""Loads a model file with the loader for its library; frameworks are imported lazily.

Callers: dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from elasticdl.errors import MissingExtraError, ModelFileError, framework_needed
from elasticdl.saved_models.finite_weights import Weight, check_finite
from elasticdl.saved_models.trust import NONE, Trust

if TYPE_CHECKING:
    from elasticdl.saved_models.file_format import ModelFile


def load(
    file: ModelFile,
    weights: ModelFile | None = None,
    *,
    custom_objects: Mapping[str, Any] | None = None,
    trust: Trust = NONE,
) -> Any:
    """Return the model of a file: a `keras.Model` that is not compiled, or a `torch.nn.Module`.

    Args:
        file: A whole model, an architecture, or a state_dict of PyTorch.
        weights: File with the weights of an architecture.
        custom_objects: Name -> class or function that the file needs but does not contain.
        trust: Code that may run.

    Raises:
        ModelFileError: The file would run untrusted code, cannot be loaded or trained, or its
            weights hold NaN or infinity.
        MissingExtraError: A library that the file needs is not installed.
    """
    loaded, held = _load(file, weights, custom_objects, trust)
    if weights is not None or file.kind != "architecture":
        check_finite((weights or file).path, held)
    return loaded


def _load(
    file: ModelFile,
    weights: ModelFile | None,
    custom_objects: Mapping[str, Any] | None,
    trust: Trust,
) -> tuple[Any, Iterable[Weight]]:
    """Load a model with the loader for its library; return it and its weights, to be checked."""
    library = file.library or (weights and weights.library) or "keras"
    if library == "torch":
        with framework_needed(f"Loading {file.path}"):
            from elasticdl.saved_models import torch  # noqa: PLC0415 - imports PyTorch
        if weights is not None:
            raise ModelFileError(
                f"{file.path} is a PyTorch file, which contains the weights. Leave {weights.path} "
                "out."
            )
        module = torch.load(file, custom_objects=custom_objects, trust=trust)
        return module, torch.weights_of(module)
    with framework_needed(f"Loading {file.path}"):
        from elasticdl.saved_models import keras  # noqa: PLC0415 - imports Keras and TensorFlow

    if library == "tf_keras":
        try:
            from elasticdl.saved_models import tf_keras  # noqa: PLC0415 - imports TensorFlow
        except ModuleNotFoundError as error:
            if error.name == "tf_keras":
                raise MissingExtraError(
                    "tf-keras",
                    "specs",
                    f"Loading {file.path}, which Keras {file.version or '2'} wrote,",
                    command="pip install --no-deps 'tf-keras>=2.21'",
                ) from error
            raise
        load_keras: Callable[..., Any] = tf_keras.load
    else:
        load_keras = keras.load
    model = load_keras(file, weights, custom_objects=custom_objects, trust=trust)
    return model, keras.weights_of(model)
