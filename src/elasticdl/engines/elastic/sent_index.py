"""Indexes of data on their way from the driver to workers and their replacements.

    driver   indexes_of --send--> Assignment, Instructions --receive--> open_records   worker

They go where a worker is told its job, since that reaches every machine; an output may be a folder
of the driver's. Workers on the driver's machine are given large ones as a file: what Ray is told
there travels with each start of a worker.

Ray is not known here. Callers: `controller.py`, `worker.py`, `tasks.py`, `open_model.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from elasticdl import scratch
from elasticdl.data.data_index import decode, encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasticdl.data.data_index import DataIndex

SentIndexes: TypeAlias = "Mapping[str, bytes | Path]"
"""By the names of the data: an index, or a file of this machine that holds it."""

_LARGE_BYTES = 1 << 20


def send(indexes: Mapping[str, DataIndex], *, same_machine: bool) -> SentIndexes:
    """Return indexes as what workers are told.

    Args:
        indexes: By the names of the data.
        same_machine: All workers are on this one.
    """
    sent: dict[str, bytes | Path] = {}
    for data, index in indexes.items():
        sent[data] = encoded = encode(index)
        if same_machine and len(encoded) > _LARGE_BYTES:
            # Without room there it travels with each start of a worker, which is slower.
            with contextlib.suppress(OSError):
                path = scratch.folder() / f"index-{hashlib.sha256(data.encode()).hexdigest()}"
                path.write_bytes(encoded)
                sent[data] = path
    return sent


def receive(sent: SentIndexes) -> dict[str, DataIndex]:
    """Return the indexes that were sent.

    Raises:
        CorruptDataError: One is damaged.
    """
    return {
        data: decode(what.read_bytes() if isinstance(what, Path) else what, f"The index of {data}")
        for data, what in sent.items()
    }
