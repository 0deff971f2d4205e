"""Content marks: show whether files still have the contents that a job was started with.

    marks = content_marks(["a.csv", "b.csv"])     # ["1834-9f0c…", "977-41aa…"], kept by the job
    marks == content_marks(["a.csv", "b.csv"])    # later: whether nothing has changed

A mark consists of a file's size and a hash of its contents; the time of the last change is not part
of it, so a file may be copied or written again. Of large files, blocks at fixed places are hashed,
so that a job does not read all of its data before it starts. A remote file's mark is its size and
the version that the store assigns.

Callers: `engines/data_changes.py`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from elasticdl.data.stored_file import StoredFile, local_path, open_each, open_stored
from elasticdl.errors import ElasticDLError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_FILES = 1_000
"""More files than this have one mark, of their sizes only."""

# Read of all files together: a few hundredths of a second.
_BUDGET_BYTES = 32 << 20
_NUM_BLOCKS = 16
_GZIP = b"\x1f\x8b"
# A gzip file states when it was written.
_GZIP_TIME = slice(4, 8)


def content_marks(uris: Sequence[str]) -> list[str]:
    """Return a mark for each file, such as "1834-9f0c...", to detect later that it has changed.

    For more than `MAX_FILES` files, the result is a single mark for all of them: a hash of their
    sizes.

    Args:
        uris: Files in reading order. One that cannot be read, or is not a file (data in memory),
            has an empty mark.
    """
    budget = _BUDGET_BYTES // max(1, len(uris))
    files = open_each(uris, _opened)
    if len(uris) <= MAX_FILES:
        return [_mark(file, budget) for file in files]
    sizes = [None if file is None else file.size_bytes for file in files]
    return [_digest(repr(sizes).encode())]


def changed_marks(now: Sequence[str], before: Sequence[str]) -> list[int]:
    """Return the positions of the files whose marks differ.

    Args:
        now: Marks from `content_marks`; an empty mark counts as equal to any other.
        before: Earlier marks of the same files. If their number differs, nothing can be compared
            and the result is empty.
    """
    if len(now) != len(before):
        return []
    return [i for i, (a, b) in enumerate(zip(now, before, strict=True)) if a and b and a != b]


def _opened(uri: str) -> StoredFile | None:
    try:
        return open_stored(uri)
    except ElasticDLError:
        return None


def _mark(file: StoredFile | None, budget: int) -> str:
    if file is None:
        return ""
    if local_path(file.uri) is None:
        return f"{file.size_bytes}-{file.version}"
    try:
        return f"{file.size_bytes}-{_digest(*_blocks(file, budget))}"
    except ElasticDLError:
        return ""


def _blocks(file: StoredFile, budget: int) -> list[bytes]:
    """Return the bytes of a file to hash: all of them, or evenly spread blocks of a large file.

    Args:
        file: The file.
        budget: Maximum number of bytes to read; a larger file is hashed in blocks.
    """
    size = file.size_bytes
    if size <= budget:
        blocks = [file.read(0, size)]
    else:
        length = max(1, budget // _NUM_BLOCKS)
        step = (size - length) / (_NUM_BLOCKS - 1)
        starts = [round(i * step) for i in range(_NUM_BLOCKS)]
        blocks = [file.read(start, start + length) for start in starts]
    if blocks[0].startswith(_GZIP):
        head = bytearray(blocks[0])
        head[_GZIP_TIME] = bytes(4)
        blocks[0] = bytes(head)
    return blocks


def _digest(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
