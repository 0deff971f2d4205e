"""Division of a data set into parts with exact shares: decides which record goes into which part.

    "train=0.8,test=0.2" --parse_parts--> parts
    hashes of the records, and their classes --assigned_parts--> part of each record

The records of each class are sorted by their hashes and assigned to the parts in turn. So each part
gets its share of each class, to within one record, as with scikit-learn's
`train_test_split(stratify=)`.

Pure: nothing is read here. `split_files.py` reads and writes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from elasticdl.data.wording import counted, shown
from elasticdl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from elasticdl.data.hash_mixing import Hashes

PartNumbers: TypeAlias = npt.NDArray[np.uint8]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_MAX_PARTS = 100
# Length of the repeating assignment, in records: exact for shares with up to four decimals.
_NUM_TURNS = 10_000


class SplitPart(NamedTuple):
    """Name and share of one of the parts that a data set is divided into.

    Attributes:
        name: Name of its folder.
        share: Its share of the records, more than 0 and less than 1.
    """

    name: str
    share: float


def parse_parts(text: str) -> tuple[SplitPart, ...]:
    """Parse a string such as `train=0.8,test=0.2`.

    Raises:
        UsageError: It has another form, a name is used twice or cannot be that of a folder,
            or the shares do not add up to 1.

    Example:
        >>> parse_parts("train=0.8,test=0.2")
        (SplitPart(name='train', share=0.8), SplitPart(name='test', share=0.2))
    """
    parts = tuple(_parse_part(text, entry) for entry in text.split(","))
    name, count = Counter(part.name for part in parts).most_common(1)[0]
    if count > 1:
        raise UsageError(f"--parts={text}: two parts are named {name!r}. Rename one of them.")
    if not 1 < len(parts) <= _MAX_PARTS:
        raise UsageError(
            f"--parts={text}: expected 2 to {_MAX_PARTS} parts, such as train=0.8,test=0.2."
        )
    total = math.fsum(part.share for part in parts)
    if not math.isclose(total, 1, abs_tol=1e-6):
        raise UsageError(
            f"--parts={text}: the shares add up to {total:g}; expected 1, as in train=0.8,test=0.2."
        )
    return parts


def _parse_part(text: str, entry: str) -> SplitPart:
    name, _, share_text = (word.strip() for word in entry.partition("="))
    try:
        share = float(share_text)
    except ValueError:
        share = math.nan
    if not _NAME.fullmatch(name) or not 0 < share < 1:
        raise UsageError(
            f"--parts={text}: {entry.strip()!r} is not a part. Expected the name of a folder and "
            "its share of the records, more than 0 and less than 1: train=0.8,test=0.2."
        )
    return SplitPart(name, share)


def assigned_parts(
    hashes: Hashes, codes: npt.NDArray[np.int64] | None, parts: Sequence[SplitPart]
) -> PartNumbers:
    """Assign each record to a part, so that every part has its share of each class.

    Args:
        hashes: uint64 [records], the order in which the records of a class are given to parts.
        codes: int64 [records], number of the class of each record. None: treat all records as one
            class.
        parts: At most 256.

    Returns:
        uint8 [records], index of each record's part in `parts`.

    Raises:
        UsageError: A part gets no record.
    """
    order = np.argsort(hashes, kind="stable") if codes is None else np.lexsort((hashes, codes))
    turns = _turns([part.share for part in parts])
    found = np.empty(len(hashes), np.uint8)
    found[order] = turns[np.arange(len(hashes)) % len(turns)]
    counts = np.bincount(found, minlength=len(parts))
    if not counts.all():
        empty = parts[int(np.argmin(counts))]
        raise UsageError(
            f"{counted(len(hashes), 'record')} cannot be divided into these parts: "
            f"{empty.name}={empty.share:g} would get none. Use larger shares, or more data."
        )
    return found


def _turns(shares: Sequence[float]) -> PartNumbers:
    """Return the numbers of the parts to which consecutive records are assigned.

    Each part occurs as often as its share requires, spread evenly: 0, 0, 1, 0, 0 ... for the shares
    0.8 and 0.2. There are `_NUM_TURNS` numbers; the caller repeats them for further records.

    Args:
        shares: Share of each part; they add up to 1.
    """
    due = np.zeros(len(shares))
    turns = np.empty(_NUM_TURNS, np.uint8)
    for number in range(_NUM_TURNS):
        due += shares
        # Rounded, so that equal parts take turns in their order.
        turns[number] = part = int(np.argmax(np.round(due, 9)))
        due[part] -= 1
    return turns


class ClassCodes:
    """Assigns numbers to the values of a field, in the order of first occurrence.

    Args:
        field: Name of the field, for messages.
    """

    def __init__(self, field: str) -> None:
        self._field = field
        self._codes: dict[Hashable, int] = {}

    def code(self, value: Hashable) -> int:
        """Return the number of a value, assigning the next one to a new value.

        None and NaN count as the same value.
        """
        key = None if value != value else value  # noqa: PLR0124 - NaN differs from itself
        return self._codes.setdefault(key, len(self._codes))

    def check(self, codes: npt.NDArray[np.int64], num_parts: int) -> None:
        """Check that each value of the field occurs in enough records to divide them into parts.

        Args:
            codes: The numbers of the values of all records.
            num_parts: Number of parts.

        Raises:
            UsageError: A value occurs in fewer records than there are parts.
        """
        counts = np.bincount(codes, minlength=len(self._codes))
        rarest = int(np.argmin(counts))
        if counts[rarest] >= num_parts:
            return
        value: Any = list(self._codes)[rarest]
        message = (
            f"--stratify={self._field}: the value {shown(_as_text(value))} occurs in "
            f"{counted(int(counts[rarest]), 'record')} only, which cannot be divided into "
            f"{num_parts} parts."
        )
        if len(counts) > len(codes) // num_parts // 2:
            message += (
                f" The field has {len(counts):,} different values in "
                f"{counted(len(codes), 'record')}: it is not a class. Leave --stratify out."
            )
        else:
            message += " Leave --stratify out, or remove these records."
        raise UsageError(message)


def _as_text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
