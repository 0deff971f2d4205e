"""Checks the settings that Keras has for the whole process, before a model is created.

Also resets the counters from which Keras makes the names of layers.

Callers: `trainer.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from elasticdl.errors import DefinitionError
from elasticdl.training.import_seed import continue_layer_names

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition


def check_backend(definition: ModelDefinition) -> None:
    """Make sure that Keras uses the TensorFlow backend.

    Raises:
        DefinitionError: KERAS_BACKEND or keras.json selects a different backend.
    """
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise DefinitionError(
            f"{definition.origin}: Keras runs on {backend} here (KERAS_BACKEND, in the environment "
            "or the model file, or ~/.keras/keras.json); ElasticDL trains Keras models on "
            "TensorFlow only. Set KERAS_BACKEND=tensorflow, or write a PyTorch module "
            "(TorchModuleWrapper and JaxLayer need Keras on those backends)."
        )


def check_limits(definition: ModelDefinition) -> None:
    """Reject limits of Keras on `fit`, which would train less than the job asks for.

    Raises:
        DefinitionError: The model file or the environment sets such a limit.
    """
    for name, option in (("max_epochs", "--num_epochs"), ("max_steps_per_epoch", "--max_steps")):
        # Early versions of Keras 3 have no such limits.
        limit = getattr(keras.config, name, lambda: None)()
        if limit is not None:
            raise DefinitionError(
                f"{definition.origin}: keras.config.set_{name}({limit}), or KERAS_{name.upper()} "
                f"in the environment, limits `fit`, which is not used here. Remove it; {option}=N "
                "limits a job."
            )


def restart_names() -> None:
    """Make Keras number automatic layer names (`conv2d`, `conv2d_1`, ...) as in a new process.

    Keras counts them up for the whole process. Parameters are stored by these names, so a second
    model must get the same names as the first. Names of layers that the model file created at its
    top level are not given again.
    """
    policy = keras.config.dtype_policy()
    keras.utils.clear_session(free_memory=False)
    continue_layer_names()
    # Otherwise it follows from floatx, which the model file may still set.
    if policy.name != keras.config.floatx():
        keras.config.set_dtype_policy(policy)
