"""Output folders to write into: one on this machine, one on a store."""

from __future__ import annotations

import resource
import uuid
from typing import TYPE_CHECKING

import pytest

from elasticdl.artifacts.folder import OutputFolder

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path: Path) -> OutputFolder:
    """Return an output folder that does not exist yet, of each kind."""
    if request.param == "local":
        return OutputFolder(tmp_path / "output")
    return OutputFolder(f"memory://{uuid.uuid4().hex}/output")


@pytest.fixture
def local_folder(tmp_path: Path) -> OutputFolder:
    """Return an output folder on this machine that does not exist yet."""
    return OutputFolder(tmp_path / "output")


@pytest.fixture
def limited_room():
    """Let files of this process grow to 1000 bytes only, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
