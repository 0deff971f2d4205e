"""Durable renames on a disk: after a power cut, a name has either its old content or the new one.

Callers: `data/atomic_file.py`, `artifacts/local_storage.py`.
"""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk (fsync).

    Raises:
        OSError: The path cannot be opened, or the disk reports an error.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(aside: Path, target: Path) -> None:
    """Rename a closed file, replacing the target; atomic, and durable after a power cut.

    Args:
        aside: The complete new file, in the target's folder.
        target: The name it gets; a file of this name is replaced.

    Raises:
        OSError: The target cannot be replaced; it keeps its content.
    """
    # Otherwise the name could reach the disk before the content, and the file would be empty.
    sync(aside)
    aside.replace(target)
    # The folder contains the name: without this, the old file could be back.
    sync(target.parent)
