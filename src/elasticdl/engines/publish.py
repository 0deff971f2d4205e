"""Publication of a trained model: the weights, the user's code, and a description of both.

Callers: `run.py` and `federated/`.
"""

from __future__ import annotations

import contextlib
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
from elasticdl.errors import ElasticDLError
from elasticdl.job import IMAGE_VARIABLE
from elasticdl.training.trainer import Exporter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elasticdl.artifacts.checkpoint_store import Checkpoint
    from elasticdl.artifacts.folder import OutputFolder
    from elasticdl.data.schema import Schema
    from elasticdl.definition import ModelDefinition
    from elasticdl.engines.engine import Reporter
    from elasticdl.job import Job
    from elasticdl.training.trainer import Trainer

_VERSIONS_OF = ("elasticdl", "keras", "tensorflow", "tensorflow-cpu", "tf-keras", "torch", "numpy")
# Names of files in a note.
_MAX_NAMES = 5


def publish(
    job: Job,
    definition: ModelDefinition,
    trainer: Trainer,
    metrics: dict[str, Any],
    *,
    classes: Sequence[str] = (),
    record_fields: Schema | None = None,
    class_columns: Mapping[str, Sequence[str]] | None = None,
    data_fingerprint: Mapping[str, Any] | None = None,
    folder: OutputFolder,
    code: Path,
    job_id: str | None = None,
) -> None:
    """Write the trained model of a finished job.

    Args:
        job: The job, with all params of the model.
        definition: The model definition.
        trainer: The trained model.
        metrics: The final metrics.
        classes: Names of the classes; empty if unknown.
        record_fields: Fields of a record of the training data; None if unknown.
        class_columns: `class_numbers.class_columns` of the training data; None if unknown.
        data_fingerprint: `data_changes.fingerprint` of the training data; None if unknown.
        folder: The output folder, already claimed.
        code: The copy of the user's code from `copy_code`.
        job_id: Id of the job that the user started; None if `job` is that job.

    Raises:
        OutputError: The model cannot be written.
    """
    assert job.model is not None  # noqa: S101 - a training job
    schema = definition.input.schema if isinstance(definition.input, RecordInput) else None
    description = Description(
        model_def=job.model.model_def,
        model_def_params=json.dumps(dict(job.model.params)),
        input_function=job.model.overrides.get("input_fn", ""),
        loss=job.model.overrides.get("loss", ""),
        optimizer=job.model.overrides.get("optimizer", ""),
        # Image of the pod that this process runs in.
        docker_commit_id=os.environ.get(IMAGE_VARIABLE, ""),
        dialect=definition.origin.dialect,
        model_zoo=job.model.zoo or "",
        zoo_commit=definition.origin.zoo_commit or "",
        framework=definition.framework,
        versions=versions(),
        data_schema_json=schema.to_json() if schema is not None else "",
        job_id=job_id or job.id,
        job_json=job.to_json(),
        created_unix_s=time.time(),
        overrides=job.model.overrides,
        metrics=metrics,
        step=trainer.step,
        classes=tuple(classes),
        record_fields_json=record_fields.to_json() if record_fields and not schema else "",
        class_columns_json=json.dumps(class_columns) if class_columns else "",
        data_fingerprint_json=json.dumps(data_fingerprint) if data_fingerprint else "",
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


def copy_code(job: Job, destination: Path, reporter: Reporter) -> dict[str, str]:
    """Copy the user's code, which may be edited during training.

    Args:
        job: The job, which names the code.
        destination: The folder to copy it to.
        reporter: Shows notes to the user.

    Returns:
        Name of each file of the model -> its SHA-256. Checkpoints contain these as `code_files`, to
        detect later whether the code has changed.
    """
    assert job.model is not None  # noqa: S101 - a training job
    opened = zoo.open_zoo(job.model.zoo)
    left_out = zoo.copy_model(job.model, opened, destination)
    if left_out:
        reporter.note(
            f"Too large to copy into the trained model with the code: {_first_of(left_out)}"
            ". A model that reads these files cannot predict without them."
        )
    for note in zoo.outside_notes(job.model, opened, destination):
        reporter.note(note)
    return zoo.code_files(job.model, destination)


def note_new_code(
    zoo_name: str,
    checkpoint: Checkpoint,
    files: Mapping[str, str],
    reporter: Reporter,
    *,
    best_metric: str | None = None,
) -> None:
    """Notify the user of a resumed job if the code has changed since the checkpoint.

    Args:
        zoo_name: Name of the model zoo (folder, repository or package) that has the code.
        checkpoint: The checkpoint that training resumes from.
        files: The hashes of the current code, from `copy_code`.
        reporter: Shows notes to the user.
        best_metric: The metric by which the weights to publish are chosen. If it has a value, the
            note says that this was computed before the change, so that later values may not be
            comparable. None if the last weights are published.
    """
    if changed := _changed(checkpoint, files):
        reporter.note(
            f"The code in {zoo_name} ({changed}) has changed since step {checkpoint.step:,}: "
            "training resumes with the new code, and with the checkpoint's optimizer and learning "
            "rate schedulers, including their settings."
            f"{_best_so_far(checkpoint, best_metric)} To start over with it, use another --output."
        )


def _best_so_far(checkpoint: Checkpoint, metric: str | None) -> str:
    """Return a note's sentence that says that the old code computed the best value so far.

    Old code is that from before a change of the model's files. The new code may compute the metric
    in another way, so that later values cannot be compared with the best one.

    Args:
        checkpoint: The checkpoint that training resumes from, with the value.
        metric: The metric by which the weights to publish are chosen; None if the last are
            published.

    Returns:
        The sentence, after a space; empty if there is no such metric, or no value yet.
    """
    if metric is None or (progress := checkpoint.metadata["progress"])["best"] is None:
        return ""
    return (
        f" The best {metric} so far, {progress['best']:.4g} at step {progress['best_step']:,}, was "
        "computed by the old code. If the new code computes it differently, later values cannot be "
        "compared with it."
    )


def note_changed_code(
    job: Job, scratch: Path, checkpoint: Checkpoint, reporter: Reporter, *, continue_option: str
) -> None:
    """Notify the user of a completed job if the code has changed since the model was trained.

    Args:
        job: The job, which names the code.
        scratch: A temporary folder to which the code is copied, to compute its hashes.
        checkpoint: The last checkpoint, which has the hashes of the trained code.
        reporter: Shows notes to the user.
        continue_option: The option whose increase continues the training, such as `--num_epochs`;
            empty if there is none.
    """
    assert job.model is not None  # noqa: S101 - a training job
    # Code that can no longer be opened, such as a deleted folder, is not a reason to fail.
    with contextlib.suppress(ElasticDLError, OSError):
        opened = zoo.open_zoo(job.model.zoo)
        zoo.copy_model(job.model, opened, scratch)
        if changed := _changed(checkpoint, zoo.code_files(job.model, scratch)):
            to_continue = (
                f"; if its layers are the same, raise {continue_option} to continue from this "
                "model with it"
                if continue_option
                else ""
            )
            reporter.note(
                f"The code in {opened.name} ({changed}) has changed since then: the trained "
                "model has the old code. To start over with the new code, use another --output"
                f"{to_continue}."
            )


def _changed(checkpoint: Checkpoint, files: Mapping[str, str]) -> str:
    """Return the names of the model's files that differ from those of a checkpoint, for a note."""
    # Checkpoints of earlier versions have no such files.
    before = checkpoint.metadata.get("code_files", files)
    names = sorted(name for name in {*before, *files} if before.get(name) != files.get(name))
    return _first_of(names)


def _first_of(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def versions() -> dict[str, str]:
    """Return package -> version for Python, ElasticDL and the installed frameworks."""
    found = {"python": platform.python_version()}
    for package in _VERSIONS_OF:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
