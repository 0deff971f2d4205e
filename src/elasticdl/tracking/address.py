"""Addresses of MLflow stores, as typed by users: a server, a database, or a folder.

MLflow's own file store is deprecated and rejects writes. A folder therefore becomes a SQLite
database in it, with the runs' files next to it. Nothing is opened here.
"""

from __future__ import annotations

import os
from pathlib import Path

DATABASE_FILE = "mlflow.db"
_SQLITE = "sqlite:///"
# Special names of MLflow that are not paths.
_WORDS = ("databricks", "databricks-uc", "uc")


def tracking_uri(text: str) -> str:
    """Convert an address typed by a user to an MLflow tracking URI; a path becomes SQLite.

    Example:
        >>> tracking_uri("http://mlflow:5000")
        'http://mlflow:5000'
        >>> tracking_uri("/data/runs"), tracking_uri("file:///data/runs")
        ('sqlite:////data/runs/mlflow.db', 'sqlite:////data/runs/mlflow.db')
        >>> tracking_uri("/data/runs/all.db")
        'sqlite:////data/runs/all.db'
    """
    text = os.path.expandvars(text.strip())
    if text.startswith(_SQLITE):
        path = text.removeprefix(_SQLITE)
        # Absolute, so that it stays valid in another working directory.
        return _SQLITE + os.path.abspath(path) if path and "?" not in path else text  # noqa: PTH100
    if text in _WORDS or ("://" in text and not text.startswith("file://")):
        return text
    # Not Path.absolute(): without `..`, equal locations are equal strings.
    path = os.path.abspath(Path(text.removeprefix("file://")).expanduser())  # noqa: PTH100
    is_database = Path(path).suffix in {".db", ".sqlite", ".sqlite3"} and not Path(path).is_dir()
    return _SQLITE + (path if is_database else str(Path(path, DATABASE_FILE)))


def database_path(uri: str) -> Path | None:
    """Return the file that a SQLite URI names; None for other URIs.

    Example:
        >>> database_path("sqlite:////data/runs/mlflow.db").as_posix()
        '/data/runs/mlflow.db'
    """
    path = uri.removeprefix(_SQLITE).partition("?")[0]
    return Path(path) if uri.startswith(_SQLITE) and path and path != ":memory:" else None
