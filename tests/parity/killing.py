"""Trains a feature and dies at a step, as by `kill -9`: `python -m tests.parity.killing ...`.

Callers: `test_killed.py`, in a process of its own.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.parity.features import FOLDER, read_feature
from tests.parity.runner import Trainings

from elasticdl.engines.in_process import InProcessCommitter


def main(framework: str, name: str, folder: str, data: str, step: str) -> None:
    """Train `framework/name` in `folder`; die before the commit that follows a step."""
    commit = InProcessCommitter.commit

    def commit_or_die(committer: Any, *args: Any, **named: Any) -> Any:
        if committer.trainer.step >= int(step):
            os.kill(os.getpid(), signal.SIGKILL)
        return commit(committer, *args, **named)

    InProcessCommitter.commit = commit_or_die  # type: ignore[method-assign]
    feature = read_feature(FOLDER / framework / f"{name}.py")
    Trainings(feature, Path(folder), Path(data)).killed()


if __name__ == "__main__":
    main(*sys.argv[1:])
