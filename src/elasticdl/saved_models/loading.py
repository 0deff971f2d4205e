"""Picks the loader a file asks for; frameworks are imported below only.

Callers: dialects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from elasticdl.errors import MissingExtraError, ModelFileError
from elasticdl.saved_models.trust import NONE, Trust

if TYPE_CHECKING:
    from elasticdl.saved_models.model_file import ModelFile


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
        weights: Where the weights of an architecture are.
        custom_objects: Name -> class or function that the file needs and does not bring.
        trust: What may run.

    Raises:
        ModelFileError: The file would run something, or cannot be loaded or trained.
        MissingExtraError: A library that the file needs is not installed.
    """
    library = file.library or (weights and weights.library) or "keras"
    if library == "torch":
        try:
            from elasticdl.saved_models import torch  # noqa: PLC0415 - imports PyTorch
        except ModuleNotFoundError as error:
            if error.name == "torch":
                raise MissingExtraError("torch", "torch", f"Loading {file.path}") from error
            raise
        if weights is not None:
            raise ModelFileError(
                f"{file.path} is of PyTorch; its weights are in it. Leave {weights.path} out."
            )
        return torch.load(file, custom_objects=custom_objects, trust=trust)
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
        return tf_keras.load(file, weights, custom_objects=custom_objects, trust=trust)
    from elasticdl.saved_models import keras  # noqa: PLC0415 - imports TensorFlow

    return keras.load(file, weights, custom_objects=custom_objects, trust=trust)
