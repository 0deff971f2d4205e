"""The command `save`: a running aggregator or party writes its model to a folder of the user.

Callers: `aggregator_commands.py` and `party_commands.py`.
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
    """Write a TrainedModel to a folder that is new, empty, or holds an earlier saved model.

    Args:
        job: The job that trains the model.
        definition: Definition of the model.
        trainer: Trainer with the model's weights.
        metrics: Metrics of the model.
        output: The folder to write to.
        code: Folder with a copy of the model's code, as `publish.copy_code` writes it.

    Raises:
        OutputTakenError: The folder holds something else, such as the output of a job.
        OutputError: The model cannot be written.
    """
    folder = OutputFolder(output)
    names = folder.list()
    if names and (JOB_FILE in names or MODEL_FILE not in names):
        raise OutputTakenError(
            f"{output}: contains something other than a saved model, and is not overwritten. Name "
            "a new or empty folder with --output."
        )
    publish(job, definition, trainer, dict(metrics), folder=folder, code=code)
