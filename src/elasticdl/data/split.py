"""Validation split (`--validation_split`): which records of a data set are held out.

    record --(name of its file, number in its file)--> hash --> position 0..1 < share: held out

The side of the split that a record is on depends on nothing else: not on the seed, the order, the
number of workers or the other files. So every process computes the same split without reading a
record, and adding files leaves all other records where they are. The folder of a file does not
count, so the data can be moved. (A hash of the content would put duplicates on one side, but would
require reading all records.)

Nothing is opened here. `split_source.py` reads the records of one side.

Callers: `split_source.py`, `split_files.py`, `engines/audit.py`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from elasticdl.data.file_ranges import Numbering
from elasticdl.data.hash_mixing import mixed, shares
from elasticdl.data.record_source import RecordFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.data.hash_mixing import Hashes

Ints: TypeAlias = npt.NDArray[np.int64]

# Records hashed at once: about a millisecond.
_BLOCK = 1 << 14
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class RecordHashes:
    """Computes a hash of each record from the name of its file and its number in the file.

    Args:
        files: The files in reading order.
        seed: Seed of the hashes: another seed gives every record another hash.
    """

    def __init__(self, files: Sequence[RecordFile], seed: int = 0) -> None:
        counts = np.fromiter((file.num_records for file in files), np.int64, len(files))
        self._firsts = np.concatenate(([0], np.cumsum(counts)))
        names = (_hash_of_name(file.uri, seed) for file in files)
        self._seeds = np.fromiter(names, np.uint64, len(files))

    def between(self, start: int, stop: int) -> tuple[Hashes, Ints]:
        """Return the hashes of records `start` to `stop` (exclusive), and the file of each.

        Returns:
            uint64 [records], the hashes; and int64 [records], index of each record's file in
            `files`.
        """
        first = int(np.searchsorted(self._firsts, start, "right")) - 1
        last = max(first, int(np.searchsorted(self._firsts, stop, "left")))
        borders = np.clip(self._firsts[first : last + 1], start, stop)
        which = np.repeat(np.arange(first, last), np.diff(borders))
        numbers = np.arange(start, stop) - self._firsts[which]
        with np.errstate(over="ignore"):
            hashes = self._seeds[which] + (numbers + 1).astype(np.uint64) * _GOLDEN
        return mixed(hashes), which


class SplitNumbering(Numbering):
    """Numbers the records on one side of a validation split (training or held out) from 0.

    The attribute `files` has, for each file, the number of its records on this side. Messages name
    a record by its number among all records of its file, whichever side they are on.

    Args:
        files: All files in reading order, with all their records.
        share: Share of the records that is held out, more than 0 and less than 1.
        held_out: Whether to number the held-out records. If False, the training records are
            numbered.

    Example:
        >>> all_files = [RecordFile("a.csv", 70), RecordFile("b.csv", 30)]
        >>> validation = SplitNumbering(all_files, 0.2, held_out=True)
        >>> training = SplitNumbering(all_files, 0.2, held_out=False)
        >>> validation.num_records, training.num_records
        (14, 86)
        >>> validation.name(0)
        'a.csv, record 15'
    """

    def __init__(self, files: Sequence[RecordFile], share: float, *, held_out: bool) -> None:
        self.share, self.held_out = share, held_out
        self._hashes = RecordHashes(files)
        self._whole = Numbering(files)
        of_files = np.zeros(len(files) + 1, np.int64)
        of_blocks = [0]
        for start in range(0, self._whole.num_records, _BLOCK):
            chosen, which = self._chosen(start, min(start + _BLOCK, self._whole.num_records))
            of_blocks.append(len(chosen))
            if len(which):
                least = int(which[0])
                counts = np.bincount(which - least)
                of_files[least : least + len(counts)] += counts
        # Number of records of this side before each block.
        self._before = np.cumsum(np.array(of_blocks, np.int64))
        counted = zip(files, of_files[:-1].tolist(), strict=True)
        super().__init__([RecordFile(file.uri, count) for file, count in counted])

    def chosen(self, start: int, stop: int) -> Ints:
        """Return which of the records `start` to `stop` (exclusive) are on this side of the split.

        Args:
            start: First record, numbered among all records.
            stop: One past the last record.

        Returns:
            Their numbers among all records, ascending.
        """
        return self._chosen(start, stop)[0]

    def span(self, start: int, stop: int) -> Ints:
        """Convert a range of record numbers of this side to numbers among all records.

        The range is from `start` to `stop` (exclusive).

        Raises:
            IndexError: The range is not within 0 .. `num_records`.
        """
        self.check(start, stop)
        if start == stop:
            return np.empty(0, np.int64)
        first = int(np.searchsorted(self._before, start, "right")) - 1
        last = int(np.searchsorted(self._before, stop, "left"))
        end = min(last * _BLOCK, self._whole.num_records)
        before = int(self._before[first])
        return self.chosen(first * _BLOCK, end)[start - before : stop - before]

    def in_source(self, numbers: Ints) -> Ints:
        """Convert record numbers of this side, in any order, to numbers among all records.

        Raises:
            IndexError: There is no such record.
        """
        if len(numbers):
            self.check(int(numbers.min()), int(numbers.max()) + 1)
        blocks = np.searchsorted(self._before, numbers, "right") - 1
        found = np.empty(len(numbers), np.int64)
        for block in np.unique(blocks).tolist():
            places = np.flatnonzero(blocks == block)
            found[places] = self._of_block(block)[numbers[places] - self._before[block]]
        return found

    def num_before(self, borders: Ints) -> Ints:
        """Return, for each position among all records, how many earlier ones are on this side.

        For positions at the ends of units, the differences are the sizes of the units on this side.

        Args:
            borders: The positions, int64, each in 0 .. the number of all records.
        """
        blocks = np.minimum(borders // _BLOCK, max(len(self._before) - 2, 0))
        found = np.zeros(len(borders), np.int64)
        for block in np.unique(blocks).tolist():
            places = np.flatnonzero(blocks == block)
            here = np.searchsorted(self._of_block(block), borders[places], "left")
            found[places] = self._before[block] + here
        return found

    def name(self, record: int) -> str:
        """Return `file, record n`, with the number that the record has in its file."""
        return self._whole.name(int(self.span(record, record + 1)[0]))

    def name_some(
        self, records: Sequence[int] | npt.NDArray[np.int64], *, most: int | None = None
    ) -> str:
        """Name the files and numbers of some records; see `Numbering.name_some`."""
        numbers = self.in_source(np.asarray(records, np.int64))
        named = self._whole.name_some
        return named(numbers) if most is None else named(numbers, most=most)

    def _of_block(self, block: int) -> Ints:
        return self.chosen(block * _BLOCK, min((block + 1) * _BLOCK, self._whole.num_records))

    def _chosen(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """Return which records of a range are on this side, and the index of each one's file.

        In the range and in the result, records are numbered among those of both sides.
        """
        hashes, which = self._hashes.between(start, stop)
        on_this_side = (shares(hashes) < self.share) == self.held_out
        places = np.flatnonzero(on_this_side)
        return start + places, which[places]


def _hash_of_name(uri: str, seed: int) -> int:
    name = uri.rstrip("/").rpartition("/")[2]
    text = name.encode(errors="surrogateescape") + b"\0%d" % seed
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
