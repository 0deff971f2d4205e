"""The best model of a session, for others: proved before it is shown, and only then tidied up.

    copy aside --> load in a new process --> says the same of a batch? --> publish --> old
                                                                          checkpoints go

A run that dies anywhere in between exports again.
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
from elasticdl.artifacts.checkpoint import CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.data.batch import leaves
from elasticdl.errors import OutputError, TrainingError
from elasticdl.training.keras.verify import write_probe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.sessions.project import Session
    from elasticdl.sessions.trained import TrainedSession

EXPORTED = "exported"
_MANIFEST = "export.json"
# What the trained model calls it -> what the documents of sessions do.
_NAMES = {"saved_model": "savedmodel", "model.keras": "model.keras"}
# Of the largest output: float32, in an order of sums that another process may choose otherwise.
_TOLERANCE = 1e-4
_TIMEOUT_S = 300


def exported(session: Session) -> dict[str, Any] | None:
    """Return what an export says of itself; None if there is none."""
    file = session.folder / EXPORTED / _MANIFEST
    if not file.is_file():
        return None
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def export(trained: TrainedSession) -> dict[str, Any]:
    """Publish the trained model as `exported/`, unless it is there already.

    Returns:
        What the export says of itself.

    Raises:
        TrainingError: The exported model cannot be loaded, or says something else.
        OutputError: It cannot be written; what was there before still is.
    """
    session, description = trained.session, trained.model.description
    there = exported(session)
    store = CheckpointStore(OutputFolder(str(session.output)))
    if there is not None and there["params_sha256"] == description.params_sha256:
        # Whoever published it may have died before they were deleted.
        store.keep_newest()
        return there
    if "saved_model" not in description.exports:
        raise TrainingError(
            f"{session.name}: TensorFlow could not export the model; the training's output says "
            "why. Everything else of it is kept: correct the model and train with another name."
        )
    with OutputFolder(session.folder).staging(EXPORTED) as staged:
        for name, shown in _NAMES.items():
            if name in description.exports:
                source = trained.model.exported(name)
                copy = shutil.copytree if source.is_dir() else shutil.copyfile
                copy(source, staged / shown)
        differences = _verified(trained, staged)
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
    """Return the command that tries exported models on a probe."""
    # Without -P, a `csv.py` in the user's folder would run in place of Python's own.
    python = [sys.executable, "-P", "-m", "elasticdl.training.keras.verify"]
    return [*python, str(probe), *map(str, models)]


def _verified(trained: TrainedSession, staged: Path) -> dict[str, float]:
    """Load what is to be exported in a new process; returns the largest difference of each.

    A `.keras` file that needs the user's classes is left out: `savedmodel` needs none.

    Raises:
        TrainingError: The SavedModel cannot be loaded, or says something else.
    """
    outputs = trained.trainer.predict(trained.example.features)
    scale = max(1.0, *map(_largest, leaves(outputs)))
    models = [staged / shown for shown in _NAMES.values() if (staged / shown).exists()]
    with tempfile.TemporaryDirectory(dir=scratch.folder()) as folder:
        probe = Path(folder) / "probe.npz"
        write_probe(probe, trained.example.features, outputs)
        try:
            done = subprocess.run(  # noqa: S603 - our own program
                verify_command(probe, models),
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=True,
            )
        except (subprocess.SubprocessError, OSError) as error:
            said = str(getattr(error, "stderr", None) or "").strip() or str(error)
            raise TrainingError(
                f"{trained.session.name}: the exported model could not be tried in a new process: "
                f"{said.splitlines()[-1]}"
            ) from error
    differences = {}
    for line in done.stdout.splitlines():
        answer = json.loads(line)
        model = Path(answer["model"])
        problem = answer.get("error")
        if problem is None and answer["difference"] > _TOLERANCE * scale:
            problem = f"says something else: outputs differ by up to {answer['difference']:.3g}"
        if problem is None:
            differences[model.name] = answer["difference"]
        elif model.is_dir():
            raise TrainingError(
                f"{trained.session.name}: the exported {model.name}, loaded in a new process, "
                f"{problem}. Nothing was exported, and all checkpoints are kept."
            )
        else:
            model.unlink()
    if not differences:
        raise OutputError(f"{staged}: nothing was exported.")
    return differences


def _largest(array: Any) -> float:
    # An infinite one would let anything pass.
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
