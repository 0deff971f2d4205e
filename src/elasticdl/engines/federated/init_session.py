"""What a federation takes over from a training session: its config, and folders with data.

Callers: `elasticdl.federated`.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elasticdl import user_files
from elasticdl.config import read_config
from elasticdl.engines.federated.component_parts import CLASS_KEYS, DATA_DIR, SOURCE
from elasticdl.errors import DataError, DefinitionError, UsageError

_RUNS = "runs"
# Of a session as a whole. How long and from which seed parties train is asked for elsewhere, and
# what components read of it they may go on reading.
_OF_SESSIONS = (DATA_DIR, "export", "project_name")


def session_section(config: str, folder: Path) -> dict[str, Any]:
    """Return the section `model` for a session's config.

    Args:
        config: `runs/NAME/config.yaml` of a project.
        folder: Where the section will stand; its paths are relative to that.

    Raises:
        UsageError: There is no such file.
        DefinitionError: It names no component classes or no `src_code_path`.
        MissingExtraError: The package that reads YAML is not installed.
    """
    file = Path(config).expanduser().resolve()
    try:
        text = user_files.read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise UsageError(f"--session_config={config}: it cannot be read: {reason}.") from error
    read = read_config(text, str(file))
    values = {key: each for key, each in read.to_dict().items() if key not in _OF_SESSIONS}
    source = values.get(SOURCE)
    if not isinstance(source, str) or not any(key in values for key in CLASS_KEYS):
        raise DefinitionError(
            f"{file}: this is no config of a training session, which has {SOURCE} and names "
            f"classes ({', '.join(CLASS_KEYS)}). See docs/sessions.md."
        )
    in_runs = file.parent.parent.name == _RUNS
    project = file.parents[2] if in_runs else file.parent
    return {**values, SOURCE: os.path.relpath(project / source, folder.resolve())}


def folders_of(data: str, num_parties: int | None) -> Sequence[Path]:
    """Return the parties' folders, by their names.

    Args:
        data: A glob that matches them, such as `hospitals/*`.
        num_parties: How many there must be; None takes all.

    Raises:
        DataError: There is none, or another number.
    """
    matched = sorted(glob.glob(os.path.expanduser(data)))  # noqa: PTH207, PTH111 - with a root
    found = [Path(path).resolve() for path in matched if os.path.isdir(path)]  # noqa: PTH112
    if not found or len(found) != (num_parties or len(found)):
        there = ", ".join(path.name for path in found) or "no folder"
        raise DataError(
            f"--data={data} matches {there}; a session's data loader reads a folder, and each "
            f"party has one of its own{f' ({num_parties} are needed)' if num_parties else ''}. "
            'Name them by a glob, such as --data="hospitals/*".'
        )
    return found


def check_for_sessions(given: Mapping[str, Any]) -> None:
    """Refuse options that say nothing to the components of a session.

    Args:
        given: Option -> its value; None where it was not given.

    Raises:
        UsageError: One was given.
    """
    extra = [f"--{name}" for name, value in given.items() if value is not None]
    if extra:
        raise UsageError(
            f"{', '.join(extra)} cannot be given with --session_config: the components of a "
            "session name the model and read the data of each party. Leave "
            f"{'it' if len(extra) == 1 else 'them'} out."
        )
