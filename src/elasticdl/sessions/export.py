"""Export of a session's best model: verified, then published, then old checkpoints are deleted.

    copy aside --> load in a new process --> same predictions for a batch? --> publish
               --> delete old checkpoints

If a run dies before it has published the model, the next run exports it again.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl import scratch
from elasticdl.artifacts.checkpoint_store import CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.data.batch import leaves
from elasticdl.errors import OutputError, TrainingError
from elasticdl.training.keras.verify_export import write_probe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.data.batch import Batch
    from elasticdl.sessions.project import SessionProject
    from elasticdl.sessions.trained import TrainedSession
    from elasticdl.training.trainer import Trainer

EXPORTED = "exported"
_MANIFEST = "export.json"
# Name in the trained model -> name in the documents of sessions.
_NAMES = {"saved_model": "savedmodel", "model.keras": "model.keras"}
# Relative to the largest output: float32, and another process may sum in another order.
_TOLERANCE = 1e-4
_TIMEOUT_S = 300


def exported(session: SessionProject) -> dict[str, Any] | None:
    """Return the manifest of a session's exported model; None if there is none."""
    file = session.folder / EXPORTED / _MANIFEST
    if not file.is_file():
        return None
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def export(trained: TrainedSession) -> dict[str, Any]:
    """Publish the trained model in the folder `exported/`, unless the same model is already there.

    In both cases, delete all checkpoints except the newest and the best afterwards.

    Returns:
        The manifest of the export.

    Raises:
        TrainingError: The exported model cannot be loaded, or its predictions differ.
        OutputError: The export cannot be written; an earlier one is kept.
    """
    session, description = trained.session, trained.model.description
    there = exported(session)
    store = CheckpointStore(OutputFolder(str(session.output)))
    if there is not None and there["params_sha256"] == description.params_sha256:
        # The process that published it may have died before it deleted them.
        store.keep_newest()
        return there
    if "saved_model" not in description.exports:
        raise TrainingError(
            f"{session.name}: TensorFlow could not export the model; see the reason in the "
            "training's output. Everything else is kept: correct the model and train with another "
            "name."
        )
    models = [trained.model.exported(name) for name in _NAMES if name in description.exports]
    with OutputFolder(session.folder).staging(EXPORTED) as staged:
        differences = copy_verified(
            models, staged, trained.trainer, trained.example, name=session.name
        )
        shutil.copyfile(session.config_file, staged / "config.yaml")
        manifest = {
            "params_sha256": description.params_sha256,
            "step": description.step,
            "metrics": dict(description.metrics),
            "largest_difference": differences,
            "config": session.config.to_dict(),
        }
        (staged / _MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")
    store.keep_newest()
    return manifest


def verify_command(probe: Path, models: Sequence[Path]) -> list[str]:
    """Return the command line that verifies exported models in a new process.

    Args:
        probe: File with a batch, and with the outputs that the models must predict for it.
        models: The exported models.
    """
    # Without -P, a `csv.py` in the user's folder would run in place of Python's own.
    python = [sys.executable, "-P", "-m", "elasticdl.training.keras.verify_export"]
    return [*python, str(probe), *map(str, models)]


def copy_verified(
    models: Sequence[Path], staged: Path, trainer: Trainer, example: Batch, *, name: str
) -> dict[str, float]:
    """Copy exported models, and compare their predictions in a new process with the trainer's.

    A `.keras` file that fails, for example because it needs the user's classes, is left out; if
    the SavedModel fails, that is an error.

    Args:
        models: Exported models, as a trainer writes them.
        staged: An existing folder to copy them to.
        trainer: Predicts the expected outputs.
        example: A batch to predict for.
        name: Name of the session, for errors.

    Returns:
        Name of each copied model -> largest difference between its predictions and the trainer's.

    Raises:
        TrainingError: The SavedModel cannot be loaded, or its predictions differ.
        OutputError: No model is left.
    """
    copies = [staged / _NAMES[model.name] for model in models]
    for model, destination in zip(models, copies, strict=True):
        copy = shutil.copytree if model.is_dir() else shutil.copyfile
        copy(model, destination)
    outputs = trainer.predict(example.features)
    scale = max(1.0, *map(_largest, leaves(outputs)))
    with tempfile.TemporaryDirectory(dir=scratch.folder()) as folder:
        probe = Path(folder) / "probe.npz"
        write_probe(probe, example.features, outputs)
        try:
            done = subprocess.run(  # noqa: S603 - our own program
                verify_command(probe, copies),
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=True,
            )
        except (subprocess.SubprocessError, OSError) as error:
            message = str(getattr(error, "stderr", None) or "").strip() or str(error)
            raise TrainingError(
                f"{name}: the exported model could not be tested in a new process: "
                f"{message.splitlines()[-1]}"
            ) from error
    differences = {}
    for line in done.stdout.splitlines():
        answer = json.loads(line)
        model = Path(answer["model"])
        problem = answer.get("error")
        if problem is None and answer["difference"] > _TOLERANCE * scale:
            problem = f"returns different outputs: they differ by up to {answer['difference']:.3g}"
        if problem is None:
            differences[model.name] = answer["difference"]
        elif model.is_dir():
            raise TrainingError(
                f"{name}: the exported {model.name}, loaded in a new process, "
                f"{problem}. Nothing was exported, and all checkpoints are kept."
            )
        else:
            model.unlink()
    if not differences:
        raise OutputError(f"{staged}: nothing was exported.")
    return differences


def _largest(array: Any) -> float:
    # With an infinite scale, every difference would be within the tolerance.
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
