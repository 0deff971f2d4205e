"""Kinds of features that the param `columns` can describe, a dataclass each.

    number, category, time, sequence, sparse     read a column
    bucket, cross                                derive ids from other features
    indicator, embedding                         define how ids enter the network

Nothing here depends on records or layers. `column_entries.py` reads the entries.

Not a model: `elasticdl zoo list` skips this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Word: TypeAlias = "str | int | float | bool"

CYCLES = ("year", "week", "day")
# 2000-01-01, in seconds since 1970.
YEAR_2000_S = 946_684_800.0
DAY_S = 86_400
COMBINERS = ("mean", "sum", "sqrtn")


@dataclass(frozen=True)
class Number:
    """A column of numbers, standardised.

    Attributes:
        column: Name of the column.
        size: Number of values per row.
        delimiter: Separator of the values if they are in one string.
        nullable: Whether the network also gets a flag for a missing value.
        offset: Number that is subtracted from the values before they are rounded to float32, so
            that large numbers that differ little keep their differences.
    """

    kind: ClassVar[str] = "number"
    column: str
    size: int = 1
    delimiter: str | None = None
    nullable: bool = False
    offset: float = 0.0

    def schema(self) -> dict[str, Any]:
        """Return the entry of `data_schema()` with which the column is read."""
        if self.delimiter is not None:
            return _entry(self.column, "string")
        shape = [] if self.size == 1 else [self.size]
        # The network rounds to float32 anyway.
        return {**_entry(self.column, "float64"), "shape": shape, "wide": True}


@dataclass(frozen=True)
class Time:
    """A column of dates or times; the network gets the time and its position in cycles.

    The time is standardised. The cycles are the year, the week and the day.

    Attributes:
        column: Name of the column.
        cycles: The cycles to use, from `CYCLES`.
        nullable: Whether the network also gets a flag for a missing value.
        offset: Time from which days are counted, in seconds since 1970; by default, 2000-01-01.
            Days are rounded to float32, so use an offset close to times that differ little.
    """

    kind: ClassVar[str] = "time"
    column: str
    cycles: tuple[str, ...] = CYCLES
    nullable: bool = False
    offset: float = YEAR_2000_S
    size: ClassVar[int] = 1

    def schema(self) -> dict[str, Any]:
        """Return the entry of `data_schema()` with which the column is read."""
        return {**_entry(self.column, "float64"), "time": True}


@dataclass(frozen=True)
class _Ids:
    """Base of features that convert the values of a column to ids: `Category`, `IdSequence`.

    Attributes:
        column: Name of the column.
        vocabulary: The values that get separate ids, or None.
        buckets: Number of ids to hash values into, or None.
        is_text: Whether the values are strings, not numbers.
        is_whole: Whether the values are integers of any size, which float64 could round.
    """

    column: str
    vocabulary: tuple[Word, ...] | None = None
    buckets: int | None = None
    is_text: bool = True
    is_whole: bool = False

    @property
    def unknown_id(self) -> int:
        """The id shared by all values that are not in the vocabulary; unused with `buckets`."""
        return len(self.vocabulary or ())

    @property
    def missing_id(self) -> int:
        """The id of a missing value."""
        return self.unknown_id + 1 if self.buckets is None else self.buckets

    @property
    def num_ids(self) -> int:
        """Number of different ids, including that of missing values."""
        return self.missing_id + 1

    def schema(self) -> dict[str, Any]:
        """Return the entry of `data_schema()` with which the column is read."""
        if self.is_whole:
            return {**_entry(self.column, "string"), "wide": True}
        return _entry(self.column, "string" if self.is_text else "float64")


@dataclass(frozen=True)
class Category(_Ids):
    """A column of categorical values, which are converted to ids."""

    kind: ClassVar[str] = "category"


@dataclass(frozen=True)
class IdSequence(_Ids):
    """A column of lists of categorical values.

    Attributes:
        delimiter: Separator of the values if a list is one string.
    """

    kind: ClassVar[str] = "sequence"
    delimiter: str | None = None

    @property
    def padding(self) -> int:
        """The id that pads shorter lists in a batch: `missing_id`, which no list contains."""
        return self.missing_id

    @property
    def input_name(self) -> str:
        """The name of the array with its ids among the model's inputs."""
        return f"sequence_{self.column}"

    def schema(self) -> dict[str, Any]:
        """Return the entry of `data_schema()` with which the column is read."""
        if self.delimiter is not None:
            return _entry(self.column, "string")
        return {**super().schema(), "shape": [None]}


@dataclass(frozen=True)
class Sparse:
    """A column of sparse vectors, written as indexes and values: `0:1.2 3:4`.

    Attributes:
        column: Name of the column.
        size: Length of the vectors.
        delimiter: Separator of the entries; None for any white space.
    """

    kind: ClassVar[str] = "sparse"
    column: str
    size: int
    delimiter: str | None = None

    def schema(self) -> dict[str, Any]:
        """Return the entry of `data_schema()` with which the column is read."""
        return _entry(self.column, "string")


@dataclass(frozen=True)
class Bucket:
    """Feature that replaces a number by the id of the interval it falls in.

    Attributes:
        of: The numeric feature whose value is replaced.
        boundaries: Boundaries between the intervals, ascending; n of them make n + 1 intervals.
    """

    kind: ClassVar[str] = "bucket"
    of: Number
    boundaries: tuple[float, ...]

    @property
    def num_ids(self) -> int:
        """Number of ids; the last one is for a missing number."""
        return len(self.boundaries) + 2


@dataclass(frozen=True)
class Cross:
    """Combinations of ids of several features, such as role and city, hashed to new ids.

    Attributes:
        of: At least two categories or buckets, whose ids are combined.
        buckets: Number of ids to hash them into.
    """

    kind: ClassVar[str] = "cross"
    of: tuple[Category | Bucket, ...]
    buckets: int

    @property
    def num_ids(self) -> int:
        """Number of ids."""
        return self.buckets


@dataclass(frozen=True)
class Indicator:
    """Ids as inputs of the network, one input per id (one-hot).

    Attributes:
        of: The feature that the ids come from.
    """

    kind: ClassVar[str] = "indicator"
    of: Category | Bucket | Cross | IdSequence


@dataclass(frozen=True)
class Embedding:
    """Ids as trained vectors, one vector per id.

    Attributes:
        of: The feature that the ids come from.
        dimension: Length of the vectors.
        combiner: How to combine the vectors of a sequence into one, such as "mean"; one of
            `COMBINERS`.
    """

    kind: ClassVar[str] = "embedding"
    of: Category | Bucket | Cross | IdSequence
    dimension: int
    combiner: str = "mean"


Source: TypeAlias = Number | Time | Category | IdSequence | Sparse
"""Features that read a column."""

Feature: TypeAlias = Source | Bucket | Cross | Indicator | Embedding


def sources_of(features: Iterable[Feature]) -> tuple[Source, ...]:
    """Return the features that read the columns needed by some features.

    A feature that derives from others is replaced by those: a bucket by its number, a cross by its
    categories. Each is returned once, in the order of the first use.
    """
    found: dict[Any, None] = {}
    for feature in features:
        inner: Any = getattr(feature, "of", None)
        if inner is None:
            found[feature] = None
        else:
            found |= dict.fromkeys(sources_of(inner if isinstance(inner, tuple) else (inner,)))
    return tuple(found)


def _entry(column: str, dtype: str) -> dict[str, Any]:
    # A row for prediction may lack a value that no row in training lacked.
    return {"name": column, "shape": [], "dtype": dtype, "nullable": True}
