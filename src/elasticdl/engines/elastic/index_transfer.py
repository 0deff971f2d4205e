"""Sends data indexes (positions of the records in files) from the driver to the workers.

    driver   indexes_of --send--> Assignment, Instructions --receive--> open_records   worker

A worker receives the indexes with its start arguments, because these reach every machine, unlike
files in the output, which may be a local folder of the driver. Ray sends start arguments again for
each worker. So if all workers are on the driver's machine, a large index is written to a file
there, and the start arguments contain only its path.

Does not depend on Ray.

Callers: `controller.py`, `worker.py`, `inference.py`, `inference_worker.py`.
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
"""Names of the data -> an encoded index, or a file on this machine that contains it."""

_LARGE_BYTES = 1 << 20


def send(indexes: Mapping[str, DataIndex], *, same_machine: bool) -> SentIndexes:
    """Encode indexes for workers; large ones become files if all workers are on this machine.

    Args:
        indexes: Location of data, such as the value of the job's `data` -> the index of its files.
        same_machine: Whether all workers are on this machine.

    Returns:
        The same keys -> the encoded index, or the path of a file that contains it.
    """
    sent: dict[str, bytes | Path] = {}
    for data, index in indexes.items():
        sent[data] = encoded = encode(index)
        if same_machine and len(encoded) > _LARGE_BYTES:
            # If there is no space for the file, send the index itself, which is slower.
            with contextlib.suppress(OSError):
                path = scratch.folder() / f"index-{hashlib.sha256(data.encode()).hexdigest()}"
                path.write_bytes(encoded)
                sent[data] = path
    return sent


def receive(sent: SentIndexes) -> dict[str, DataIndex]:
    """Decode the indexes that `send` returned.

    Raises:
        CorruptDataError: An index is damaged.
    """
    return {
        data: decode(what.read_bytes() if isinstance(what, Path) else what, f"The index of {data}")
        for data, what in sent.items()
    }
