"""Trains features in processes that die at a step, as by `kill -9`.

`python -m tests.parity.killing` imports the frameworks, reads the arguments of `train` as JSON, a
training a line, and writes how the process of each ended.

Callers: `test_killed.py`, in a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.parity.features import FOLDER, read_feature
from tests.parity.runner import Trainings

from elasticdl.engines.in_process import InProcessCommitter


def main() -> None:
    """Train in processes that have the frameworks from this one: importing takes longest."""
    import keras  # noqa: F401
    import torch  # noqa: F401

    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                train(*json.loads(line))
            finally:
                sys.stderr.flush()
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def train(framework: str, name: str, folder: str, data: str, step: int) -> None:
    """Train `framework/name` in `folder`; die before the commit that follows a step."""
    commit = InProcessCommitter.commit

    def commit_or_die(committer: Any, *args: Any, **named: Any) -> Any:
        if committer.trainer.step >= step:
            os.kill(os.getpid(), signal.SIGKILL)
        return commit(committer, *args, **named)

    InProcessCommitter.commit = commit_or_die  # type: ignore[method-assign]
    feature = read_feature(FOLDER / framework / f"{name}.py")
    Trainings(feature, Path(folder), Path(data)).killed()


if __name__ == "__main__":
    main()
