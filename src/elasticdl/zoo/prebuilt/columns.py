"""Converts rows of a table to arrays, by the features that the param `columns` describes.

    columns=[{"kind": "number", "column": "age"},
             {"kind": "category", "column": "role", "vocabulary": ["clerk", "boss"]}]

    {"age": 31.0, "role": b"boss"}
      -> {"numbers": [31.0], "missing": [0.0], "ids": [1]}

Strings are converted to ids here, in the input function: models and exports take only numbers.
`column_layers.py` has the layers for these numbers, `column_entries.py` reads the entries.

Not a model: `elasticdl zoo list` skips this file.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from elasticdl.data.wording import listed
from elasticdl.definition import Mode
from elasticdl.errors import SchemaError
from elasticdl.zoo.prebuilt.column_entries import how_to_leave_out, read_columns
from elasticdl.zoo.prebuilt.column_kinds import (
    DAY_S,
    Category,
    Feature,
    IdSequence,
    Number,
    Source,
    Sparse,
    Time,
    sources_of,
)
from elasticdl.zoo.prebuilt.lost_differences import Spread, warn_of_lost_differences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from elasticdl.data.batch import Record

    Array: TypeAlias = np.ndarray[Any, Any]

NUMBERS, MISSING, PLAIN, IDS = "numbers", "missing", "plain", "ids"
_log = logging.getLogger("elasticdl")
_WEEK_S = 7 * DAY_S
# 1970-01-01 was a Thursday; weeks begin on Monday.
_FIRST_MONDAY_S = 4 * DAY_S
# Fewer values may all be unknown by chance, or differ from known ones only by case.
_LEAST_PRESENT, _LEAST_ALIKE = 20, 5
_SHOWN_WORDS = 3


@dataclass
class _Compared:
    """Running comparison of a column's values in one mode with its vocabulary.

    Attributes:
        num_present: Number of its first values, without missing ones.
        num_known: Number of those in the vocabulary.
        num_alike: Number of values that differ from known ones only by case or surrounding space.
        folded: The vocabulary without these differences; None until it is needed.
        is_warned: Whether a warning was logged.
    """

    num_present: int = 0
    num_known: int = 0
    num_alike: int = 0
    folded: set[str] | None = None
    is_warned: bool = False


@dataclass(frozen=True)
class Columns:
    """The features of a model, and the columns to read for them.

    Attributes:
        features: Features, in the user's order.
        sources: The features that read a column of the table, each once.
        compared: (Mode, index of a source) -> comparison of its values with its vocabulary.
        spreads: Number or time -> spread of its values in training.
    """

    features: tuple[Feature, ...]
    sources: tuple[Source, ...]
    compared: defaultdict[tuple[Mode, int], _Compared] = field(
        default_factory=lambda: defaultdict(_Compared), compare=False, repr=False
    )
    spreads: defaultdict[Source, Spread] = field(
        default_factory=lambda: defaultdict(Spread), compare=False, repr=False
    )

    @staticmethod
    def of(entries: Sequence[Mapping[str, Any]], label: str) -> Columns:
        """Build the features from the entries of the param `columns`.

        Args:
            entries: Plain JSON; see `docs/guides/model-files.md`.
            label: The column to learn, which cannot be a feature.

        Raises:
            UsageError: An entry is invalid.
        """
        features = read_columns(entries, label)
        return Columns(features, sources_of(features))

    def schema(self) -> list[dict[str, Any]]:
        """Return the entries of `data_schema()` for the columns to read."""
        entries: dict[str, dict[str, Any]] = {}
        for source in self.sources:
            entry = source.schema()
            if entries.setdefault(source.column, entry)["dtype"] != entry["dtype"]:
                # For a number, a feature that needs its digits determines the dtype.
                entries[source.column] |= {"dtype": "string", "wide": True}
        return [*entries.values()]

    def arrays(self, records: Sequence[Record], mode: Mode = Mode.TRAINING) -> dict[str, Array]:
        """Convert a batch of records to arrays of features.

        Args:
            records: The records of the batch.
            mode: What the batch is for. In evaluation and prediction, a warning is logged if the
                values of a column are written differently than in its vocabulary.

        Returns:
            Name -> array. `numbers`, float32 [batch, numbers], is 0 for a missing value; `missing`,
            of the same shape, is 1 there, else 0. `plain`, float32 [batch, values], holds the
            values that need no standardising. `ids` is int32 [batch, categories]. Each sequence is
            int32 [batch, longest], padded with `IdSequence.padding`. Arrays that no feature needs
            are left out.

        Raises:
            SchemaError: A value does not match its feature.
        """
        numbers: list[Array] = []
        plain: list[Array] = []
        ids: list[Array] = []
        found: dict[str, Array] = {}
        for source in self.sources:
            if isinstance(source, Number):
                numbers.append(self._checked(source, _numbers(source, records), mode))
            elif isinstance(source, Time):
                days, cycles = _time(source, records)
                numbers.append(self._checked(source, days, mode))
                plain += [cycles] if source.cycles else []
            elif isinstance(source, Category):
                ids.append(_ids(source, _single(records, source.column)))
            elif isinstance(source, Sparse):
                plain.append(_sparse(source, records))
            elif isinstance(source, IdSequence):
                found[source.input_name] = _padded(source, records)
        if numbers:
            values = np.concatenate(numbers, axis=1)
            missing = np.isnan(values)
            found[MISSING] = missing.astype(np.float32)
            found[NUMBERS] = np.where(missing, 0, values).astype(np.float32)
        if plain:
            found[PLAIN] = np.concatenate(plain, axis=1, dtype=np.float32)
        if ids:
            found[IDS] = np.stack(ids, axis=1)
        self._compare_with_vocabularies(found, records, mode)
        return found

    def _checked(self, source: Number | Time, values: Array, mode: Mode) -> Array:
        """Return the values of a batch unchanged; in training, warn if float32 would blur them."""
        # Rows to predict may be neighbours that differ little.
        if mode is Mode.TRAINING:
            warn_of_lost_differences(source, values, self.spreads[source])
        return values

    def _compare_with_vocabularies(
        self, found: Mapping[str, Array], records: Sequence[Record], mode: Mode
    ) -> None:
        if mode == Mode.TRAINING or len(records) == 1:  # one: the trial of a prediction, perhaps
            return
        columns = iter(found[IDS].T[..., None] if IDS in found else ())
        for index, source in enumerate(self.sources):
            if isinstance(source, Category):
                _compare(source, next(columns), records, self.compared[mode, index])
            elif isinstance(source, IdSequence):
                _compare(source, found[source.input_name], records, self.compared[mode, index])


def _compare(
    source: Category | IdSequence, ids: Array, records: Sequence[Record], so_far: _Compared
) -> None:
    """Warn if a column's values in this mode are written differently than in training.

    That is so if none of the first ones is in the vocabulary, or if several ones so far differ from
    a word only by case or surrounding space, such as MALE for male. Many other unknown values may
    be normal, because words that occurred once are not in the vocabulary.

    Args:
        source: The column.
        ids: The ids of its values, int32 [batch, values].
        records: The records with these values.
        so_far: The comparison of earlier values, which is updated.
    """
    if not source.vocabulary or so_far.is_warned:
        return
    is_unknown, knows_none = ids == source.unknown_id, False
    if so_far.num_present < _LEAST_PRESENT:
        is_present = ids != source.missing_id
        so_far.num_present += int(is_present.sum())
        so_far.num_known += int((is_present & ~is_unknown).sum())
        knows_none = so_far.num_present >= _LEAST_PRESENT and not so_far.num_known
    if source.is_text and is_unknown.any():
        if so_far.folded is None:
            so_far.folded = {str(word).strip().casefold() for word in source.vocabulary}
        words = (
            word.decode(errors="replace").strip().casefold()
            for row in np.flatnonzero(is_unknown.any(axis=1)).tolist()
            for word, unknown in zip(_values(source, records[row]), is_unknown[row], strict=False)
            if unknown and isinstance(word, bytes)
        )
        so_far.num_alike += sum(word in so_far.folded for word in words)
    are_alike = so_far.num_alike >= _LEAST_ALIKE
    if not are_alike and not knows_none:
        return
    # Without counts and examples, so that the driver logs the texts of several workers once.
    known = listed(source.vocabulary[:_SHOWN_WORDS])
    known += ", ..." if len(source.vocabulary) > _SHOWN_WORDS else ""
    advice = ""
    if are_alike:
        what = (
            "does not know some of its values, which differ only by case or surrounding space from "
            f"values that it knows ({known})"
        )
    else:
        what = f"knows none of its first values; it knows {known}"
        advice = (
            " If the column is not meant as a feature, such as a name or a row number, train "
            f"without it: {how_to_leave_out(source.column)}."
        )
    so_far.is_warned = True
    _log.warning(
        f"Column {source.column!r}: the model {what}. If these values mean the same as known ones, "
        f"write them as the known ones are.{advice}"
    )


def _values(source: Category | IdSequence, record: Record) -> list[Any]:
    if isinstance(source, IdSequence):
        return _present_values(source, record)
    return [record[source.column].item()]


def _single(records: Sequence[Record], column: str) -> list[Any]:
    """Return the value of a column in each record; a record must have exactly one."""
    return [record[column].item() for record in records]


def _numbers(source: Number, records: Sequence[Record]) -> Array:
    """Return the values of a number column minus its offset, float64 [batch, size].

    Missing ones are NaN.

    Raises:
        SchemaError: A value is infinite in float32, or not a number.
    """
    if source.delimiter is None:
        read: list[Any] = [record[source.column] for record in records]
        if read and read[0].dtype == object:
            # The digits of the number, because another feature needs them.
            read = [_floats(source, each) for each in read]
        values = np.array(read, np.float64).reshape(len(records), source.size)
    else:
        texts = _single(records, source.column)
        values = np.array([_parsed_array(source, text) for text in texts], np.float64)
    values -= source.offset
    with np.errstate(over="ignore"):
        infinite = np.isinf(values.astype(np.float32))
    if infinite.any():
        raise SchemaError(
            f"Column {source.column!r} holds {values[infinite][0]}, which is not a number that a "
            "network can process (the largest is 3.4e38). Leave such rows out, or scale the "
            "column."
        )
    return values


def _floats(source: Number, digits: Array) -> list[float]:
    return [
        np.nan if each is None or not each.strip() else _as_number(source, each)
        for each in digits.ravel().tolist()
    ]


def _parsed_array(source: Number, text: bytes | None) -> list[float]:
    if text is None or not text.strip():
        return [np.nan] * source.size
    parts = [part.strip() for part in text.decode().split(source.delimiter)]
    try:
        values = [float(part) if part else np.nan for part in parts]
    except ValueError:
        values = []
    if len(values) != source.size:
        raise SchemaError(
            f"Column {source.column!r} holds {text.decode()!r}; expected {source.size} numbers "
            f"with {source.delimiter!r} between them, as its entry in `columns` says."
        )
    return values


def _time(source: Time, records: Sequence[Record]) -> tuple[Array, Array]:
    """Return the values of a time column: days, and positions within cycles such as the week.

    Returns:
        Days since the offset [batch, 1], NaN for missing times; and the cycles [batch, 2 * cycles]:
        the sine and the cosine of the position in each, 0 for missing times.
    """
    seconds = np.array(_single(records, source.column), np.float64)
    known = ~np.isnan(seconds)
    turns = np.zeros((len(seconds), len(source.cycles)))
    for at, cycle in enumerate(source.cycles):
        turns[known, at] = _TURNS[cycle](seconds[known])
    angles = 2 * np.pi * turns
    cycles = np.concatenate([np.sin(angles), np.cos(angles)], axis=1) * known[:, None]
    days = ((seconds - source.offset) / DAY_S)[:, None]
    return days, cycles


def _turn_of_year(seconds: Array) -> Array:
    try:
        moments = seconds.astype("datetime64[s]")
        years = moments.astype("datetime64[Y]")
        first = years.astype("datetime64[s]").astype(np.int64)
        past = (years + 1).astype("datetime64[s]").astype(np.int64)
    except (OverflowError, ValueError):
        raise SchemaError("A time is outside the range of supported years.") from None
    return np.asarray((seconds - first) / (past - first))


_TURNS: dict[str, Callable[[Array], Array]] = {
    "year": _turn_of_year,
    "week": lambda seconds: (seconds - _FIRST_MONDAY_S) % _WEEK_S / _WEEK_S,
    "day": lambda seconds: seconds % DAY_S / DAY_S,
}


def _ids(source: Category | IdSequence, values: Iterable[Any]) -> Array:
    """Return the id of each value of a categorical column, int32.

    An id is the value's position in the vocabulary; without a vocabulary, a hash of the value and
    the column's name.

    Args:
        source: The column.
        values: Its values: bytes, numbers, or None.

    Raises:
        SchemaError: A value of a numeric column is not a number.
    """
    if source.is_whole:
        values = [_whole(source, value) for value in values]
    elif not source.is_text:
        values = [_as_number(source, v) if isinstance(v, bytes) else v for v in values]
    if source.vocabulary is not None:
        known: dict[Any, int] = {}
        for number, word in enumerate(source.vocabulary):
            compared = _as_bytes(word) if source.is_whole else word
            compared = compared.encode() if isinstance(compared, str) else compared
            known[compared if isinstance(compared, bytes) else float(compared)] = number
        known[None] = source.missing_id
        unknown = source.unknown_id
        found = [
            known.get(value, source.missing_id if _is_nan(value) else unknown) for value in values
        ]
    else:
        assert source.buckets is not None  # noqa: S101 - the entry was checked
        buckets = source.buckets
        salt = zlib.crc32(source.column.encode())
        found = [
            source.missing_id
            if _is_missing(value)
            else zlib.crc32(_as_bytes(value), salt) % buckets
            for value in values
        ]
    return np.array(found, np.int32)


def _is_missing(value: Any) -> bool:
    return value is None or _is_nan(value)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _as_bytes(value: Any) -> bytes:
    """Return the bytes of a value to hash: a string itself, or the decimal digits of a number."""
    if isinstance(value, bytes):
        return value
    return str(int(value) if float(value).is_integer() else float(value)).encode()


def _whole(source: Category | IdSequence, digits: Any) -> bytes | None:
    """Return the digits of an integer, so that 7, "7" and "07" get the same id; None if missing.

    Args:
        source: The column, for errors.
        digits: The value in a record: a number, or digits as bytes.

    Raises:
        SchemaError: The value is not a number.
    """
    if _is_missing(digits):
        return None
    if not isinstance(digits, bytes):
        return _as_bytes(digits)
    if not digits.strip():
        return None
    try:
        return str(int(digits)).encode()
    except ValueError:
        number = _as_number(source, digits)
    return None if math.isnan(number) else _as_bytes(number)


def _present_values(source: IdSequence, record: Record) -> list[Any]:
    """Return the values of a sequence, without missing ones."""
    values = record[source.column].ravel().tolist()
    if source.delimiter is None:
        return [value for value in values if not _is_missing(value)]
    text = values[0] if values else None
    words = [] if text is None else [w.strip() for w in text.split(source.delimiter.encode())]
    if not source.is_text and not source.is_whole:
        return [_as_number(source, word) for word in words if word]
    return [word for word in words if word]


def _as_number(source: Number | Category | IdSequence, word: bytes) -> float:
    try:
        return float(word)
    except ValueError:
        raise SchemaError(
            f"Column {source.column!r} holds {word.decode(errors='replace')!r}; the feature "
            "accepts only numbers, as its entry in `columns` says."
        ) from None


def _padded(source: IdSequence, records: Sequence[Record]) -> Array:
    """Return the ids of sequences, int32 [batch, longest], padded with `IdSequence.padding`."""
    lists = [_present_values(source, record) for record in records]
    lengths = [len(words) for words in lists]
    # Not every layer accepts an axis of length 0.
    every = np.full((len(lists), max(*lengths, 1)), source.padding, np.int32)
    every[np.arange(every.shape[1]) < np.array(lengths)[:, None]] = _ids(
        source, [word for words in lists for word in words]
    )
    return every


def _sparse(source: Sparse, records: Sequence[Record]) -> Array:
    """Parse strings such as `0:1.2 3:4` (index:value) to vectors, float32 [batch, size].

    Raises:
        SchemaError: A string is malformed, or an index is out of range.
    """
    every = np.zeros((len(records), source.size), np.float32)
    for row, text in enumerate(_single(records, source.column)):
        if text is None:
            continue
        parts = text.decode().split(source.delimiter)
        for part in filter(None, map(str.strip, parts)):
            place, _, value = part.partition(":")
            try:
                at, number = int(place), float(value) if value else 1.0
            except ValueError:
                at, number = -1, 0.0
            if not (0 <= at < source.size and np.isfinite(np.float32(number))):
                raise SchemaError(
                    f"Column {source.column!r} holds {part!r}; expected INDEX or INDEX:VALUE, with "
                    f"an index from 0 to {source.size - 1}, as its entry in `columns` says."
                )
            every[row, at] = number
    return every
