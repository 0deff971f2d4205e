"""Picks the trainer a definition asks for; frameworks are imported only here and below."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from elasticdl.errors import DefinitionError, MissingExtraError

if TYPE_CHECKING:
    from elasticdl.data.batch import Batch
    from elasticdl.definition import ModelDefinition
    from elasticdl.training.trainer import Trainer


def create_trainer(
    definition: ModelDefinition,
    example: Batch,
    *,
    minibatch_size: int,
    seed: int,
    slot: int = 0,
    deterministic: bool = True,
) -> Trainer:
    """Return a trainer for the definition's framework, built for batches like the example.

    Raises:
        DefinitionError: The model does not fit the batch, or no trainer knows its framework.
        MissingExtraError: The framework is not installed.
    """
    return _trainer_class(definition)(
        definition,
        example,
        minibatch_size=minibatch_size,
        seed=seed,
        slot=slot,
        deterministic=deterministic,
    )


def _trainer_class(definition: ModelDefinition) -> Callable[..., Trainer]:
    if definition.framework == "keras":
        try:
            from elasticdl.training.keras import KerasTrainer  # noqa: PLC0415 - imports TensorFlow
        except ModuleNotFoundError as error:
            if error.name in {"keras", "tensorflow"}:
                raise MissingExtraError(
                    error.name, "tensorflow", "Training Keras models"
                ) from error
            raise
        return KerasTrainer
    if definition.framework == "torch":
        try:
            from elasticdl.training.torch import TorchTrainer  # noqa: PLC0415 - imports PyTorch
        except ModuleNotFoundError as error:
            if error.name == "torch":
                raise MissingExtraError("torch", "torch", "Training PyTorch models") from error
            raise
        return TorchTrainer
    raise DefinitionError(
        f"{definition.origin}: there is no trainer for {definition.framework!r}; have: keras, "
        "torch."
    )


def import_framework() -> None:
    """Import Keras now, without what TensorFlow writes past Python's own streams meanwhile.

    Called before the user's file is imported, and with it whatever else computes. Whether Keras
    is needed is known only afterwards, and by then the file has imported it aloud; so it is
    imported for a PyTorch model as well. Where it is not installed, who needs it says so.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        # PyTorch's threads wait for each other by spinning; how long, libgomp reads when loaded.
        # With another busy process on two cores, 138 steps took 17 s by its own default; so, 3 s.
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    if "tensorflow" in sys.modules:
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with _no_stderr(), contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("keras")


@contextlib.contextmanager
def _no_stderr() -> Iterator[None]:
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
