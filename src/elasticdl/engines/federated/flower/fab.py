"""The app that Flower is given: a description that names code of ours which is installed already.

Flower sends an app's code from the aggregator to the parties and runs it there. Ours has none: its
pyproject.toml names `server_app` and `client_app` of the installed package, and is the same for
every federation. So a party can tell it from any other, and takes no other (`guard.py`).

Callers: `superlink.py` writes the folder for `flwr run`; `guard.py` looks at what arrived.
"""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path
from typing import Any

# Changes with what the two apps say to each other: older parties are then told to be updated.
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
    """Write the app's folder, for `flwr run`; returns it."""
    app = folder / NAME
    app.mkdir(parents=True, exist_ok=True)
    (app / _PYPROJECT).write_text(_DESCRIPTION)
    return app


def what_is_foreign(bundle: zipfile.ZipFile) -> str | None:
    """Return why a bundle is not ours, or None if it is.

    It is compared by what it holds: the bytes of an archive depend on who packed it. `flwr run`
    writes the description anew, so its values are compared and not its text.
    """
    entries = bundle.infolist()
    names = sorted(entry.filename for entry in entries)
    if names != sorted((_PYPROJECT, _CONTENT)):
        return f"it holds the files {', '.join(names)[:200]}"
    if any(entry.file_size > _MAX_FILE_BYTES for entry in entries):
        return "its files are too large"
    try:
        description = tomllib.loads(bundle.read(_PYPROJECT).decode())
    except (ValueError, OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError):
        return f"its {_PYPROJECT} cannot be read"
    if description != tomllib.loads(_DESCRIPTION):
        version = _version_of(description)
        # It may be anything, and is printed at the aggregator.
        return (
            f"its {_PYPROJECT} is another"
            if version in {None, VERSION}
            else f"it is version {str(version)[:20]!r} of it"
        )
    return None


def _version_of(description: dict[str, Any]) -> object:
    project = description.get("project")
    if isinstance(project, dict) and project.get("name") == NAME:
        return project.get("version")
    return None
