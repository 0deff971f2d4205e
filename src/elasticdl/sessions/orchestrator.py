"""Python interface to run a session: the class `Orchestrator`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.sessions.project import open_session
from elasticdl.sessions.run import run

if TYPE_CHECKING:
    from elasticdl.engines.engine import Reporter
    from elasticdl.sessions.state import SessionStatus


class Orchestrator:
    """A session of a project, to be run from Python as by `elasticdl session run`.

    Args:
        run_name: Name of the folder in `runs/`.
        data_dir: Data folder. None: `data_dir` of the config.
        project_root: The repository.
        eval_reports_dir: Folder for a copy of the test data's tables, `eval_report.csv` and
            `eval_report_summary.csv`. They are written to its subfolder PROJECT/RUN. None: only
            write them to `reports/` of the session.
        mlflow_tracking_uri: An MLflow server, database or folder. None: `MLFLOW_TRACKING_URI` of
            the environment, or the project's own `mlflow.db`.

    Raises:
        UsageError: There is no such session.
        DefinitionError: The config lacks a key, or has a value that cannot be used.
        DataError: The data folder does not exist.
    """

    def __init__(
        self,
        run_name: str,
        data_dir: str | os.PathLike[str] | None = None,
        project_root: str | os.PathLike[str] = ".",
        eval_reports_dir: str | os.PathLike[str] | None = None,
        mlflow_tracking_uri: str | None = None,
    ) -> None:
        self.session = open_session(
            run_name,
            project_root=os.fspath(project_root),
            data_dir=None if data_dir is None else os.fspath(data_dir),
        )
        self._reports = None if eval_reports_dir is None else Path(eval_reports_dir)
        self._tracking_uri = mlflow_tracking_uri

    def run(self, reporter: Reporter | None = None, **options: Any) -> SessionStatus:
        """Train, export and evaluate; resume an earlier run.

        Args:
            reporter: Reports progress to the user. None: one that suits the terminal.
            **options: Further options of the run, by name; `sessions.run.run` describes them.

        Raises:
            ElasticDLError: The run failed; see `elasticdl.errors`.
        """
        status = run(self.session, reporter=reporter, tracking_uri=self._tracking_uri, **options)
        if self._reports is not None:
            folder = self._reports / self.session.experiment / self.session.name
            folder.mkdir(parents=True, exist_ok=True)
            for table in ("eval_report.csv", "eval_report_summary.csv"):
                source = self.session.folder / "reports" / table
                if source.is_file():
                    shutil.copyfile(source, folder / table)
        return status
