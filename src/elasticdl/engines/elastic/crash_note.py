"""Crash note: records which batches a process is working on, readable after its death.

    process that trains       with note.working("making", epoch, shard, batch): ...
    process that started it   note.read() -> the batches it was working on when it died

A segmentation fault or the kernel's out-of-memory killer leaves no time for a message, so the note
is a file that both processes map into memory. Writing costs about a microsecond.

One thread prepares batches while another computes, so the note usually names two batches. In shards
in which workers have died before, only one of the two threads works at a time, so that the note
names only the batch that causes the crash.

Callers: `worker_process.py` creates and reads it, `worker.py` and `committer.py` write.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

Work: TypeAlias = Literal["making", "computing", "evaluating"]

_KINDS: tuple[Work, ...] = get_args(Work)
_ENTRY = struct.Struct("<?3q")
_SIZE = _ENTRY.size * len(_KINDS)


@dataclass(frozen=True, order=True)
class BatchInWork:
    """A batch that a process was working on.

    Attributes:
        work: What the process was doing with the batch: one of the values of `Work`.
        epoch: Epoch, from 0; 0 for "evaluating".
        shard: Position of the shard in the epoch's order; for "evaluating", the shard of the
            validation data.
        batch: Number of the batch in the shard, from 0; always 0 for "evaluating", where only the
            shard is recorded.
    """

    work: Work
    epoch: int
    shard: int
    batch: int

    def __str__(self) -> str:
        """Describe the batch and the work on it, for log messages."""
        if self.work == "evaluating":
            return f"evaluating shard {self.shard} of the validation data"
        return f"{self.work} epoch {self.epoch + 1}, shard {self.shard}, batch {self.batch}"


class CrashNote:
    """Record of the batches that a process is working on; see the module docstring.

    Args:
        path: The file that holds the note, created if it does not exist. None: keep the note in
            memory, where no other process can read it.

    Attributes:
        suspects: (epoch, shard) of each shard with a batch at which more than one worker has died.
            In these shards only one thread may work at a time, so that the note names the batch
            that causes a death.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.suspects: Collection[tuple[int, int]] = ()
        self._one_at_a_time = threading.Lock()
        if path is None:
            self._memory = mmap.mmap(-1, _SIZE)
            return
        with path.open("a+b") as file:
            file.truncate(_SIZE)
            self._memory = mmap.mmap(file.fileno(), _SIZE)

    @contextlib.contextmanager
    def working(self, work: Work, epoch: int, shard: int, batch: int = 0) -> Iterator[None]:
        """Context manager that records in the note which batch its block works on.

        If the batch's shard is in `suspects`, it first waits until no other thread of this process
        works on a batch of such a shard.

        Args:
            work: What the block does with the batch.
            epoch: Epoch, from 0.
            shard: Position of the shard in the epoch's order.
            batch: Number of the batch in the shard, from 0.
        """
        is_suspect = work != "evaluating" and (epoch, shard) in self.suspects
        with self._one_at_a_time if is_suspect else contextlib.nullcontext():
            _ENTRY.pack_into(self._memory, _offset(work), True, epoch, shard, batch)
            try:
                yield
            finally:
                _ENTRY.pack_into(self._memory, _offset(work), False, 0, 0, 0)

    def read(self) -> Sequence[BatchInWork]:
        """Return the batches that the writing process works on, or worked on when it died."""
        found = []
        for work in _KINDS:
            is_working, epoch, shard, batch = _ENTRY.unpack_from(self._memory, _offset(work))
            if is_working:
                found.append(BatchInWork(work, epoch, shard, batch))
        return found


def _offset(work: Work) -> int:
    return _ENTRY.size * _KINDS.index(work)
