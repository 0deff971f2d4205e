"""What a TrainedModel is made of: the weights, the user's code, and words about both.

Callers: `run.py` and `federated/`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl import zoo
from elasticdl.artifacts.trained_model import Description, save_trained_model
from elasticdl.definition import RecordInput
from elasticdl.job import IMAGE_VARIABLE
from elasticdl.training.trainer import Exporter

if TYPE_CHECKING:
    from elasticdl.artifacts.checkpoint import Checkpoint
    from elasticdl.artifacts.folder import OutputFolder
    from elasticdl.definition import ModelDefinition
    from elasticdl.engines.engine import Reporter
    from elasticdl.job import Job
    from elasticdl.training.trainer import Trainer

_VERSIONS_OF = ("elasticdl", "keras", "tensorflow", "tensorflow-cpu", "tf-keras", "torch", "numpy")


def publish(
    job: Job,
    definition: ModelDefinition,
    trainer: Trainer,
    metrics: dict[str, Any],
    *,
    folder: OutputFolder,
    code: Path,
) -> None:
    """Write the TrainedModel of a job that is done.

    Args:
        job: What was asked for.
        definition: What was trained.
        trainer: The model.
        metrics: What it scored.
        folder: The output, claimed.
        code: What `copy_code` made.

    Raises:
        OutputError: It cannot be written.
    """
    assert job.model is not None  # noqa: S101 - a training job
    schema = definition.input.schema if isinstance(definition.input, RecordInput) else None
    description = Description(
        model_def=job.model.model_def,
        model_def_params=json.dumps(dict(job.model.params)),
        input_function=job.model.overrides.get("input_fn", ""),
        loss=job.model.overrides.get("loss", ""),
        optimizer=job.model.overrides.get("optimizer", ""),
        # Of the pod that this process is in.
        docker_commit_id=os.environ.get(IMAGE_VARIABLE, ""),
        dialect=definition.origin.dialect,
        model_zoo=job.model.zoo or "",
        zoo_commit=definition.origin.zoo_commit or "",
        framework=definition.framework,
        versions=versions(),
        data_schema_json=schema.to_json() if schema is not None else "",
        job_id=job.id,
        job_json=job.to_json(),
        created_unix_s=time.time(),
        overrides=job.model.overrides,
        metrics=metrics,
        step=trainer.step,
    )

    def copy_zoo(destination: Path) -> None:
        shutil.copytree(code, destination, dirs_exist_ok=True)

    def export(destination: Path) -> None:
        if isinstance(trainer, Exporter):
            trainer.export(destination)

    save_trained_model(
        folder,
        description,
        {
            path.removeprefix("model/"): array
            for path, array in trainer.state().items()
            if path.startswith("model/")
        },
        copy_zoo=copy_zoo,
        export=export,
    )


def copy_code(
    job: Job, destination: Path, checkpoint: Checkpoint | None, reporter: Reporter
) -> str:
    """Copy the user's code, which may be edited while the training runs; return its SHA-256."""
    assert job.model is not None  # noqa: S101 - a training job
    opened = zoo.open_zoo(job.model.zoo)
    left_out = zoo.copy_model(job.model, opened, destination)
    if left_out:
        reporter.note(
            f"Too large for the trained model's copy of the code: {', '.join(left_out[:5])}"
            + (f" and {len(left_out) - 5} more" if len(left_out) > 5 else "")  # noqa: PLR2004
            + ". A model that reads these files cannot predict without them."
        )
    digest = hashlib.sha256()
    for path in sorted(destination.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(destination)}\0".encode() + path.read_bytes())
    if checkpoint is not None and checkpoint.metadata["code_sha256"] != digest.hexdigest():
        reporter.note(
            f"The code in {opened.name} was changed since step {checkpoint.step:,}: from here on "
            "the new code trains. Take another --output to start over with it."
        )
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Return package -> version of what trains here."""
    found = {"python": platform.python_version()}
    for package in _VERSIONS_OF:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
