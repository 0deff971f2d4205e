"""A model written where somebody says, while its process goes on.

Callers: `verbs.py` and `party_verbs.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.artifacts.claim import JOB_FILE
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.trained_model import MODEL_FILE
from elasticdl.engines.publish import publish
from elasticdl.errors import OutputTakenError

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition
    from elasticdl.job import Job
    from elasticdl.training.trainer import Trainer


def save_model(
    job: Job,
    definition: ModelDefinition,
    trainer: Trainer,
    metrics: Mapping[str, Any],
    *,
    output: str,
    code: Path,
) -> None:
    """Write a TrainedModel into a folder that is new, empty, or has one that was saved before.

    Args:
        job: What trains it.
        definition: What is trained.
        trainer: It has the model.
        metrics: What it scored.
        output: Where it goes.
        code: What `publish.copy_code` made.

    Raises:
        OutputTakenError: Something else is there, such as what a training left.
        OutputError: It cannot be written.
    """
    folder = OutputFolder(output)
    names = folder.list()
    if names and (JOB_FILE in names or MODEL_FILE not in names):
        raise OutputTakenError(
            f"{output}: holds something else than a saved model, which is not replaced. Name a new "
            "or empty folder with --output."
        )
    publish(job, definition, trainer, dict(metrics), folder=folder, code=code)
