"""A line for each step a process has behind it, in a file of its own; `failures.py` reads them.

    {"time": 1795000000.12, "pid": 4711, "member": 2, "step": 312, "size": 3, "records": 192}

One line costs some 10 us; nothing is waited for. Where STEP_LINES is not set, there are none.
"""

import functools
import json
import os
import time
from pathlib import Path

_files = {}


def tell(**fields):
    """Write a line.

    Args:
        fields: `step`, counted from 1; `member`, the rank or rank of this process; `size`, how
            many took part in the step; `records`, how many all of them brought. Or `ready`: it
            could begin.
    """
    folder = os.environ.get("STEP_LINES")
    if not folder:
        return
    pid = os.getpid()
    if pid not in _files:
        path = Path(folder, f"{pid}.jsonl")
        _files[pid] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    line = json.dumps({"time": time.time(), "pid": pid, **fields})
    # One call: who is killed meanwhile leaves the whole line or nothing.
    os.write(_files[pid], f"{line}\n".encode())


def tell_commits():
    """Tell what the elastic engine commits in this process, from within a model file.

    The engine tells such things about once a second, for people; here it is every commit, at the
    moment it has entered the model. Callbacks would not do: they hear of a step only where it had
    a batch, and PyTorch models have none.
    """
    from elasticdl.engines.elastic.committer import ElasticCommitter

    # A model's files may be imported more than once.
    if hasattr(ElasticCommitter, "tells_lines"):
        return
    ElasticCommitter.tells_lines = True
    prepared, entered = ElasticCommitter.__init__, ElasticCommitter._entered  # noqa: SLF001 - a probe

    @functools.wraps(prepared)
    def prepare(self, *args, **named):
        prepared(self, *args, **named)
        tell(ready=True)

    @functools.wraps(entered)
    def enter(self, verdict, metrics):
        commit = entered(self, verdict, metrics)
        brought = sum(row.num_batches for row in verdict.rows if row.rank == self._rank)
        tell(
            member=self._rank,
            step=self._trainer.step,
            size=len(verdict.ranks),
            records=int(verdict.num_examples),
            brought=brought,
        )
        return commit

    ElasticCommitter.__init__, ElasticCommitter._entered = prepare, enter  # noqa: SLF001 - a probe
