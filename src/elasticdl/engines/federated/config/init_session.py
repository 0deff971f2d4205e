"""Makes the configs of a federation from a training session's config, one party per data folder.

The data are neither copied nor changed.

Callers: `elasticdl.federated`.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elasticdl import user_files
from elasticdl.config_file import read_config
from elasticdl.engines.federated.config.component_sections import CLASS_KEYS, DATA_DIR, SOURCE
from elasticdl.errors import DataError, DefinitionError, UsageError

_RUNS = "runs"
# Keys of the session as a whole, which are dropped. `epochs` and `seed` stay because components may
# read them, although a federation sets both elsewhere.
_OF_SESSIONS = (DATA_DIR, "export", "project_name")


def session_section(config: str, folder: Path) -> dict[str, Any]:
    """Convert the config of a training session to the section `model` of a federated config.

    Args:
        config: `runs/NAME/config.yaml` of a project.
        folder: Folder of the config that will contain the section; paths are relative to it.

    Raises:
        UsageError: The file cannot be read.
        DefinitionError: The config names no component classes or no `src_code_path`.
        MissingExtraError: The package that reads YAML is not installed.
    """
    file = Path(config).expanduser().resolve()
    try:
        text = user_files.read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"--session_config={config}: cannot be read: {reason}.") from error
    read = read_config(text, str(file))
    values = {key: each for key, each in read.to_dict().items() if key not in _OF_SESSIONS}
    source = values.get(SOURCE)
    if not isinstance(source, str) or not any(key in values for key in CLASS_KEYS):
        raise DefinitionError(
            f"{file}: not the config of a training session: expected {SOURCE} and the names of "
            f"classes ({', '.join(CLASS_KEYS)}). See docs/guides/sessions.md."
        )
    in_runs = file.parent.parent.name == _RUNS
    project = file.parents[2] if in_runs else file.parent
    return {**values, SOURCE: os.path.relpath(project / source, folder.resolve())}


def folders_of(data: str, num_parties: int | None) -> Sequence[Path]:
    """Find the folders with data, one for each party; return them sorted by name.

    Args:
        data: A glob that matches them, such as `hospitals/*`.
        num_parties: The required number of folders. None: any number.

    Raises:
        DataError: No folder matches, or not the required number.
    """
    matched = sorted(glob.glob(os.path.expanduser(data)))  # noqa: PTH207, PTH111 - with a root
    found = [Path(path).resolve() for path in matched if os.path.isdir(path)]  # noqa: PTH112
    if not found or len(found) != (num_parties or len(found)):
        there = ", ".join(path.name for path in found) or "no folder"
        raise DataError(
            f"--data={data} matches {there}; a session's data loader reads a folder, and each "
            f"party needs its own{f' ({num_parties} are needed)' if num_parties else ''}. Pass a "
            'glob that matches the folders, such as --data="hospitals/*".'
        )
    return found


def check_for_sessions(given: Mapping[str, Any]) -> None:
    """Reject options that have no effect with the config of a training session.

    The session's components, not these options, define the model and read the data.

    Args:
        given: Name of each such option -> its value; None if the user did not give it.

    Raises:
        UsageError: One of them was given.
    """
    extra = [f"--{name}" for name, value in given.items() if value is not None]
    if extra:
        raise UsageError(
            f"{', '.join(extra)} cannot be used with --session_config: the session's components "
            "define the model and read each party's data. Leave "
            f"{'it' if len(extra) == 1 else 'them'} out."
        )
