"""The app that Flower runs: a description without code, which names our installed modules.

Flower sends an app's code from the aggregator to the parties and runs it there. Our app has no
code: its pyproject.toml names `server_app` and `client_app` of the installed package, and is the
same for every federation. A party can therefore recognise it, and accepts no other app
(`app_allow_list.py`).

Callers: `superlink.py` writes the folder for `flwr run`; `app_allow_list.py` checks received apps.
"""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path
from typing import Any

# Must change with the messages between the two apps: older parties then get an error that says to
# update.
VERSION = "1.0.0"
NAME = "elasticdl-federated"
PUBLISHER = "elasticdl"

_DESCRIPTION = f"""\
[project]
name = "{NAME}"
version = "{VERSION}"
description = "Passes messages between an ElasticDL aggregator and its parties."
license = {{ text = "Apache-2.0" }}

[tool.flwr.app]
publisher = "{PUBLISHER}"

[tool.flwr.app.components]
serverapp = "elasticdl.engines.federated.flower.server_app:app"
clientapp = "elasticdl.engines.federated.flower.client_app:app"
"""
_PYPROJECT, _CONTENT = "pyproject.toml", ".info/CONTENT"
_MAX_FILE_BYTES = 2**16


def write(folder: Path) -> Path:
    """Write the folder of the app, which `flwr run` starts, and return its path."""
    app = folder / NAME
    app.mkdir(parents=True, exist_ok=True)
    (app / _PYPROJECT).write_text(_DESCRIPTION)
    return app


def what_is_foreign(bundle: zipfile.ZipFile) -> str | None:
    """Return how a Flower app bundle differs from ElasticDL's app; None if it is that app.

    The contents are compared, because the bytes of an archive depend on the packing program. The
    description is compared by its values, because `flwr run` rewrites the file.
    """
    entries = bundle.infolist()
    names = sorted(entry.filename for entry in entries)
    if names != sorted((_PYPROJECT, _CONTENT)):
        return f"it contains the files {', '.join(names)[:200]}"
    if any(entry.file_size > _MAX_FILE_BYTES for entry in entries):
        return "its files are too large"
    try:
        description = tomllib.loads(bundle.read(_PYPROJECT).decode())
    except (ValueError, OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError):
        return f"its {_PYPROJECT} cannot be read"
    if description != tomllib.loads(_DESCRIPTION):
        version = _version_of(description)
        # The version may be any value and is printed at the aggregator, so it is shortened.
        return (
            f"its {_PYPROJECT} differs"
            if version in {None, VERSION}
            else f"its version is {str(version)[:20]!r}"
        )
    return None


def _version_of(description: dict[str, Any]) -> object:
    project = description.get("project")
    if isinstance(project, dict) and project.get("name") == NAME:
        return project.get("version")
    return None
