"""Picks the trainer a definition asks for; frameworks are imported only here and below."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
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
    if definition.framework != "keras":
        raise DefinitionError(
            f"{definition.origin}: there is no trainer for {definition.framework!r}; have: keras."
        )
    try:
        from elasticdl.training.keras import KerasTrainer  # noqa: PLC0415 - imports TensorFlow
    except ModuleNotFoundError as error:
        if error.name in {"keras", "tensorflow"}:
            raise MissingExtraError(error.name, "tensorflow", "Training Keras models") from error
        raise
    return KerasTrainer(
        definition,
        example,
        minibatch_size=minibatch_size,
        seed=seed,
        slot=slot,
        deterministic=deterministic,
    )


def import_framework() -> None:
    """Import Keras now, without what TensorFlow writes past Python's own streams meanwhile.

    It is imported sooner or later; where it is not installed, who needs it says so.
    """
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
