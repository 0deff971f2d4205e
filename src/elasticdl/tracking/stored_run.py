"""File `tracking.json` in a job's output: its MLflow run, which later attempts continue.

Callers: `mlflow.py` writes it. `create.py` reads it to see whether MLflow has recorded the end of a
finished job.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elasticdl.artifacts.claim import TRACKING_FILE
from elasticdl.errors import OutputError

if TYPE_CHECKING:
    from elasticdl.artifacts.folder import OutputFolder


@dataclass(frozen=True)
class StoredRun:
    """The MLflow run of a job.

    Attributes:
        job_id: Id of the job.
        uri: The MLflow store, without a password.
        experiment: Name of the experiment.
        run_id: MLflow's id of the run; empty until it is known.
        mark: Unique tag of the run, by which an attempt finds the run if `run_id` is empty.
        status: How the job ended, as MLflow has recorded it; empty until then.
    """

    job_id: str
    uri: str
    experiment: str
    run_id: str
    mark: str = ""
    status: str = ""

    def write(self, folder: OutputFolder) -> None:
        """Write the run to `tracking.json` in an output.

        Raises:
            OutputError: The file cannot be written.
        """
        text = json.dumps(dataclasses.asdict(self), indent=2)
        folder.write_bytes(TRACKING_FILE, text.encode())


def load_stored_run(folder: OutputFolder) -> StoredRun | None:
    """Read the stored run of an output; None if there is none, or its file cannot be read."""
    try:
        return StoredRun(**json.loads(folder.read_bytes(TRACKING_FILE)))
    except (OutputError, ValueError, TypeError):
        # An unreadable file must not make the job fail: the job gets a new run.
        return None
