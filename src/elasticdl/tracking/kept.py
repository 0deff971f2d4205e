"""Which run a job has: `tracking.json` in its output, so that the next attempt goes on with it.

Callers: `mlflow.py` writes it; `create.py` asks it whether a finished job is known as finished.
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
class KeptRun:
    """The run of a job.

    Attributes:
        job_id: Whose it is.
        uri: The MLflow store, with no password in it.
        experiment: Name of the experiment.
        run_id: MLflow's name for it; empty until it is known.
        mark: What the run is tagged with, so that it is found by who does not know its name yet.
        status: How the job ended, once MLflow knows; empty until then.
    """

    job_id: str
    uri: str
    experiment: str
    run_id: str
    mark: str = ""
    status: str = ""

    def write(self, folder: OutputFolder) -> None:
        """Keep it in an output.

        Raises:
            OutputError: It cannot be written.
        """
        text = json.dumps(dataclasses.asdict(self), indent=2)
        folder.write_bytes(TRACKING_FILE, text.encode())


def read_kept(folder: OutputFolder) -> KeptRun | None:
    """Return the run an output has; None if there is none, or what is there cannot be read."""
    try:
        return KeptRun(**json.loads(folder.read_bytes(TRACKING_FILE)))
    except (OutputError, ValueError, TypeError):
        # A job is not to fail by it: it gets a new run.
        return None
