"""Conversion of global record numbers, counted over all files, to ranges of single files.

Every reader numbers records over all its files, but reads file by file; this module converts from
one to the other. It only computes: it opens no file.

Callers: the readers in this folder.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from elasticdl.data.record_source import RecordFile, RecordSource


_MAX_NAMED = 8


class FileRange(NamedTuple):
    """Records `start` to `stop` (exclusive) of one file, numbered within that file."""

    file_index: int
    start: int
    stop: int


class Numbering:
    """Converts between global record numbers, counted over all files, and numbers within a file.

    A reader creates it once. A look-up then takes time logarithmic in the number of files, so
    minibatches are hardly slower if there are ten thousand files.

    Attributes:
        files: The files in reading order.
        num_records: Number of records in all files.

    Example:
        >>> from elasticdl.data.record_source import RecordFile
        >>> Numbering([RecordFile("a", 2), RecordFile("b", 3)]).name(2)
        'b, record 0'
    """

    def __init__(self, files: Sequence[RecordFile]) -> None:
        self.files = tuple(files)
        # The first number of each file, and one past the last number of all.
        self._firsts = [0, *accumulate(file.num_records for file in self.files)]
        self.num_records = self._firsts[-1]

    def split(self, start: int, stop: int) -> list[FileRange]:
        """Split a range at the borders between files.

        Args:
            start: First record.
            stop: One past the last.

        Returns:
            The parts in order, none of them empty; files without a record in the range are
            left out. An empty range has no part.

        Raises:
            IndexError: The range is not within 0 .. `num_records`.
        """
        self.check(start, stop)
        parts = []
        while start < stop:
            # The rightmost file that starts here or before: empty files are skipped.
            index = bisect_right(self._firsts, start) - 1
            first = self._firsts[index]
            end = min(stop, self._firsts[index + 1])
            parts.append(FileRange(index, start - first, end - first))
            start = end
        return parts

    def check(self, start: int, stop: int) -> None:
        """Check that the range `start` to `stop` (exclusive) is within the records.

        Raises:
            IndexError: The range is not within 0 .. `num_records`.
        """
        if not 0 <= start <= stop <= self.num_records:
            raise IndexError(
                f"Records {start} to {stop} were requested; expected 0 <= start <= stop <= "
                f"{self.num_records}, the number of records."
            )

    def name(self, record: int) -> str:
        """Return `file, record n` for a global record number, for an error message.

        Raises:
            IndexError: There is no such record.
        """
        part = self.split(record, record + 1)[0]
        return f"{self.files[part.file_index].uri}, record {part.start}"

    def name_some(
        self, records: Sequence[int] | npt.NDArray[np.int64], *, most: int = _MAX_NAMED
    ) -> str:
        """Name the files and numbers of some records, for an error message.

        A range is named by its ends; otherwise only the first few records are named.

        Args:
            records: Global record numbers, at least one, in any order.
            most: Maximum number of records to name, unless they are a range.

        Raises:
            IndexError: There is no such record.

        Example:
            >>> from elasticdl.data.record_source import RecordFile
            >>> numbering = Numbering([RecordFile("a", 9), RecordFile("b", 9)])
            >>> numbering.name_some([7, 12, 2]), numbering.name_some(range(12, 18))
            ('a, records 2 and 7; b, record 3', 'b, records 3 to 8')
            >>> numbering.name_some([0, 2, 4, 6], most=2)
            'a, records 0, 2 and 2 more'
        """
        numbers = sorted(int(record) for record in records)
        first, last = self.name(numbers[0]), self.name(numbers[-1])
        if len(numbers) == 1:
            return first
        if numbers[-1] - numbers[0] == len(numbers) - 1:
            parts = self.split(numbers[0], numbers[-1] + 1)
            if len(parts) > 1:
                return f"{first}, to {last}"
            (part,) = parts
            uri = self.files[part.file_index].uri
            return f"{uri}, records {part.start} to {part.stop - 1}"
        shown = numbers[:most]
        by_file: dict[str, list[int]] = {}
        for record in shown:
            ((index, number, _),) = self.split(record, record + 1)
            by_file.setdefault(self.files[index].uri, []).append(number)
        rest = len(numbers) - len(shown)
        end = len(by_file) - 1
        return "; ".join(
            f"{uri}, {_listed(there, rest if i == end else 0)}"
            for i, (uri, there) in enumerate(by_file.items())
        )


def numbering_of(source: RecordSource) -> Numbering:
    """Return the `Numbering` that names the records of a source in messages.

    This is the source's attribute `numbering` if it has one, as each side of a validation split
    does; otherwise a new `Numbering` of the source's files.
    """
    own: Numbering | None = getattr(source, "numbering", None)
    return Numbering(source.files) if own is None else own


def _listed(numbers: Sequence[int], more: int = 0) -> str:
    texts = [str(number) for number in numbers]
    if more:
        texts.append(f"{more} more")
    if len(texts) == 1:
        return f"record {texts[0]}"
    return f"records {', '.join(texts[:-1])} and {texts[-1]}"
