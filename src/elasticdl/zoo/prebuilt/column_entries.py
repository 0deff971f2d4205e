"""Reads and checks the param `columns`, the features of a table model, when a model is created.

An entry is plain JSON, a dict with a kind; a mistake in an entry is a `UsageError` that names it.
`column_kinds.py` defines the kinds.

Not a model: `elasticdl zoo list` skips this file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from elasticdl.did_you_mean import did_you_mean
from elasticdl.errors import UsageError
from elasticdl.zoo.prebuilt.column_kinds import (
    COMBINERS,
    CYCLES,
    YEAR_2000_S,
    Bucket,
    Category,
    Cross,
    Embedding,
    Feature,
    IdSequence,
    Indicator,
    Number,
    Sparse,
    Time,
    Word,
    sources_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Range of an int32.
_MAX_IDS = 2**31 - 16
# A crossed column without a separate entry is hashed into the maximum number of ids.
_MANY = 2**31 - 32


def read_columns(entries: Any, label: str) -> tuple[Feature, ...]:
    """Parse and check the param `columns` of a table model.

    Args:
        entries: The value of the param: a list of dicts.
        label: Name of the column to learn, which cannot be a feature.

    Returns:
        The features, in the order of the entries.

    Raises:
        UsageError: An entry is invalid.
    """
    if not isinstance(entries, (list, tuple)) or not entries:
        raise UsageError(
            f"--params: columns is {entries!r}; expected a list with one dict per feature, such as "
            '[{"kind": "number", "column": "age"}].'
        )
    reader = _Reader(entries, label)
    features = tuple(reader.read(entry, f"columns[{i}]") for i, entry in enumerate(entries))
    by_column: dict[str, Any] = {}
    names = set()
    for source in sources_of(features):
        other = by_column.setdefault(source.column, source)
        if _held(other.schema()) != _held(source.schema()):
            raise UsageError(
                f"--params: columns read {source.column!r} as {_article(other.kind)} and as "
                f"{_article(source.kind)} of another type. Read a column in one way."
            )
        if isinstance(source, IdSequence):
            if source.column in names:
                raise UsageError(
                    f"--params: columns have two different sequences of {source.column!r}. Give "
                    "both the same vocabulary or buckets."
                )
            names.add(source.column)
    return features


def _held(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Normalise a schema entry: entries that can share one reading of a column become equal.

    Two features may read the same column only if their normalised entries are equal. An entry for
    float64 and one for strings of digits (`wide`) become equal, because the digits serve both.
    """
    is_number = entry.get("wide") or (entry["dtype"] == "float64" and "time" not in entry)
    held = {name: value for name, value in entry.items() if name != "wide"}
    return held | ({"dtype": "number"} if is_number else {})


def how_to_leave_out(column: str) -> str:
    """Return how to train without a column, as a phrase that follows a colon."""
    # The features of a model that chose them by itself are in `columns`, too.
    return (
        f"remove its entry from columns or, if you give no columns, add {column!r} to the param "
        "ignore"
    )


class _Reader:
    """Reader of the param `columns`, in which an entry may refer to another by its column.

    Args:
        entries: All entries.
        label: Name of the column to learn, which cannot be a feature.
    """

    def __init__(self, entries: Sequence[Any], label: str) -> None:
        self._entries = entries
        self._label = label

    def read(self, entry: Any, where: str) -> Any:
        """Return the feature that an entry describes.

        Args:
            entry: A dict with a kind.
            where: Position of the entry, for errors: `columns[2].of`.

        Raises:
            UsageError: The entry is invalid.
        """
        if not isinstance(entry, Mapping):
            raise UsageError(f"--params: {where} is {entry!r}; expected a dict with a kind.")
        kind = entry.get("kind")
        if kind not in _KEYS:
            raise UsageError(
                f"--params: {where} has the kind {kind!r}{_near(kind, _KEYS)} The kinds are "
                f"{', '.join(_KEYS)}."
            )
        where = f"{where} ({kind})"
        required, optional = _KEYS[kind]
        for key in entry:
            if key not in {"kind", *required, *optional}:
                known = ", ".join((*required, *optional))
                raise UsageError(
                    f"--params: {where} has an unknown key {key!r}"
                    f"{_near(key, (*required, *optional))} {_article(kind).capitalize()} has "
                    f"{known}."
                )
        for key in required:
            if key not in entry:
                raise UsageError(f"--params: {where} has no {key!r}.")
        if "column" in entry:
            self._check_column(entry["column"], where)
        return getattr(self, f"_{kind}")(entry, where)

    def _check_column(self, column: Any, where: str) -> None:
        if not isinstance(column, str) or not column:
            raise UsageError(f"--params: {where}: column is {column!r}; expected its name.")
        if column == self._label:
            raise UsageError(
                f"--params: {where} is the label, {column!r}, so it cannot be a feature. Leave it "
                "out, or choose another label."
            )

    def _number(self, entry: Mapping[str, Any], where: str) -> Number:
        return Number(
            entry["column"],
            _whole(entry, "size", where, default=1),
            _text(entry, "delimiter", where),
            _flag(entry, "nullable", where),
            _offset(entry, where, default=0.0),
        )

    def _time(self, entry: Mapping[str, Any], where: str) -> Time:
        cycles = entry.get("cycles", CYCLES)
        if not isinstance(cycles, (list, tuple)):
            raise UsageError(f"--params: {where}: cycles is {cycles!r}; expected a list.")
        for cycle in cycles:
            if cycle not in CYCLES:
                raise UsageError(
                    f"--params: {where}: cycles has {cycle!r}{_near(cycle, CYCLES)} There are "
                    f"{', '.join(CYCLES)}."
                )
        nullable = _flag(entry, "nullable", where)
        offset = _offset(entry, where, default=YEAR_2000_S)
        return Time(entry["column"], tuple(cycles), nullable, offset)

    def _category(self, entry: Mapping[str, Any], where: str) -> Category:
        return Category(entry["column"], *_vocabulary(entry, where))

    def _sequence(self, entry: Mapping[str, Any], where: str) -> IdSequence:
        delimiter = _text(entry, "delimiter", where)
        return IdSequence(entry["column"], *_vocabulary(entry, where), delimiter=delimiter)

    def _sparse(self, entry: Mapping[str, Any], where: str) -> Sparse:
        delimiter = _text(entry, "delimiter", where)
        white = delimiter is None or not delimiter.strip()
        size = _whole(entry, "size", where)
        return Sparse(entry["column"], size, None if white else delimiter)

    def _bucket(self, entry: Mapping[str, Any], where: str) -> Bucket:
        of = self._of(entry["of"], f"{where}.of", (Number,))
        if of.size != 1:
            raise UsageError(f"--params: {where}: its number has size {of.size}; expected 1.")
        boundaries = entry["boundaries"]
        are_numbers = isinstance(boundaries, (list, tuple)) and all(map(_is_number, boundaries))
        if not (are_numbers and boundaries and list(boundaries) == sorted(set(boundaries))):
            raise UsageError(
                f"--params: {where}: boundaries is {boundaries!r}; expected ascending numbers, "
                "such as [18, 30, 65]."
            )
        return Bucket(of, tuple(map(float, boundaries)))

    def _cross(self, entry: Mapping[str, Any], where: str) -> Cross:
        of = entry["of"]
        if not isinstance(of, (list, tuple)) or len(of) < 2:  # noqa: PLR2004 - a pair at least
            raise UsageError(
                f"--params: {where}: of is {of!r}; expected a list of at least two categories, "
                "buckets or columns."
            )
        parts = tuple(
            self._of(part, f"{where}.of[{i}]", (Category, Bucket)) for i, part in enumerate(of)
        )
        return Cross(parts, _whole(entry, "buckets", where))

    def _indicator(self, entry: Mapping[str, Any], where: str) -> Indicator:
        kinds = (Category, Bucket, Cross, IdSequence)
        return Indicator(self._of(entry["of"], f"{where}.of", kinds))

    def _embedding(self, entry: Mapping[str, Any], where: str) -> Embedding:
        kinds = (Category, Bucket, Cross, IdSequence)
        of = self._of(entry["of"], f"{where}.of", kinds)
        combiner = entry.get("combiner", "mean")
        if combiner not in COMBINERS:
            raise UsageError(
                f"--params: {where}: combiner is {combiner!r}{_near(combiner, COMBINERS)} There "
                f"are {', '.join(COMBINERS)}."
            )
        return Embedding(of, _whole(entry, "dimension", where), combiner)

    def _of(self, entry: Any, where: str, kinds: tuple[type[Any], ...]) -> Any:
        if isinstance(entry, str):
            return self._named(entry, where, kinds)
        feature = self.read(entry, where)
        if not isinstance(feature, kinds):
            expected = " or ".join(_article(kind.kind) for kind in kinds)
            raise UsageError(f"--params: {where} is {_article(feature.kind)}; expected {expected}.")
        return feature

    def _named(self, column: str, where: str, kinds: tuple[type[Any], ...]) -> Any:
        """Return the feature for a column that an entry refers to by its name alone.

        If another entry of `columns` describes the column as one of `kinds`, its feature is
        returned. Otherwise, the column is read as a number if `kinds` contain `Number`, else as a
        category with hashed values, unless `kinds` contain `Cross`.

        Args:
            column: Name of the column.
            where: Position of the string, for errors.
            kinds: Classes of features that are allowed there.

        Raises:
            UsageError: No other entry describes the column, and `kinds` allow no default.
        """
        self._check_column(column, where)
        wanted = [kind.kind for kind in kinds]
        for i, entry in enumerate(self._entries):
            is_it = isinstance(entry, Mapping) and entry.get("column") == column
            if is_it and entry.get("kind") in wanted:
                return self.read(entry, f"columns[{i}]")
        if Number in kinds:
            return Number(column)
        if Cross not in kinds:
            # A column that is only crossed may have any number of ids.
            return Category(column, buckets=_MANY)
        near = _near(column, [c for e in self._entries if (c := _column_of(e)) is not None])
        raise UsageError(
            f"--params: {where} is {column!r}, which no other entry describes{near} Write the "
            "entry itself here, with its vocabulary or buckets: "
            f'{{"kind": "category", "column": {column!r}, "buckets": 1024}}.'
        )


_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "number": (("column",), ("size", "delimiter", "nullable", "offset")),
    "category": (("column",), ("vocabulary", "buckets", "dtype")),
    "time": (("column",), ("cycles", "nullable", "offset")),
    "sequence": (("column",), ("vocabulary", "buckets", "dtype", "delimiter")),
    "sparse": (("column", "size"), ("delimiter",)),
    "bucket": (("of", "boundaries"), ()),
    "cross": (("of", "buckets"), ()),
    "indicator": (("of",), ()),
    "embedding": (("of", "dimension"), ("combiner",)),
}


def _column_of(entry: Any) -> str | None:
    column = entry.get("column") if isinstance(entry, Mapping) else None
    return column if isinstance(column, str) else None


def _vocabulary(
    entry: Mapping[str, Any], where: str
) -> tuple[tuple[Word, ...] | None, int | None, bool, bool]:
    """Return (vocabulary, number of buckets, is_text, is_whole) of a categorical column.

    They are passed to `column_kinds.Category` or `IdSequence`, which describe them.

    Args:
        entry: The entry of the column.
        where: Position of the entry, for errors: `columns[2].of`.

    Raises:
        UsageError: The entry is invalid.
    """
    if ("vocabulary" in entry) == ("buckets" in entry):
        raise UsageError(
            f"--params: {where} needs either a vocabulary or a number of buckets: "
            '"vocabulary": ["clerk", "boss"], or "buckets": 1024.'
        )
    dtype = entry.get("dtype")
    if dtype not in (None, "string", "int64"):
        raise UsageError(
            f"--params: {where}: dtype is {dtype!r}; expected 'string' or 'int64', the type of the "
            "column."
        )
    is_whole = dtype == "int64"
    if "buckets" in entry:
        return None, _whole(entry, "buckets", where), not is_whole, is_whole
    vocabulary = entry["vocabulary"]
    is_list = isinstance(vocabulary, (list, tuple)) and len(vocabulary) > 0
    if is_list and all(isinstance(word, str) for word in vocabulary):
        is_text = True
    elif is_list and all(isinstance(word, bool) or _is_number(word) for word in vocabulary):
        is_text = False
    else:
        raise UsageError(
            f"--params: {where}: vocabulary is {vocabulary!r}; expected a list of strings, or one "
            "of numbers."
        )
    # Converted as for the comparison with a column: for numbers as floats, which would round
    # integers.
    compared = [word if is_text or is_whole else float(word) for word in vocabulary]
    if len(set(compared)) < len(compared):
        twice = next(w for w, c in zip(vocabulary, compared, strict=True) if compared.count(c) > 1)
        raise UsageError(f"--params: {where}: vocabulary has {twice!r} twice.")
    if dtype is not None and is_text != (dtype == "string"):
        raise UsageError(
            f"--params: {where}: dtype is {dtype!r}, but its vocabulary has "
            f"{'strings' if is_text else 'numbers'}."
        )
    return tuple(vocabulary), None, is_text, is_whole


def _whole(entry: Mapping[str, Any], key: str, where: str, *, default: int | None = None) -> int:
    value = entry.get(key, default)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not (is_whole and 0 < value < _MAX_IDS):
        raise UsageError(f"--params: {where}: {key} is {value!r}; expected a whole number above 0.")
    return int(value)


def _text(entry: Mapping[str, Any], key: str, where: str) -> str | None:
    value = entry.get(key)
    if value is not None and not (isinstance(value, str) and value):
        raise UsageError(f"--params: {where}: {key} is {value!r}; expected a non-empty string.")
    return value


def _flag(entry: Mapping[str, Any], key: str, where: str) -> bool:
    value = entry.get(key, False)
    if not isinstance(value, bool):
        raise UsageError(f"--params: {where}: {key} is {value!r}; expected true or false.")
    return value


def _offset(entry: Mapping[str, Any], where: str, default: float) -> float:
    value = entry.get("offset", default)
    if not _is_number(value):
        raise UsageError(f"--params: {where}: offset is {value!r}; expected a number.")
    return float(value)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _near(name: Any, known: Iterable[str]) -> str:
    """Return "; did you mean 'NAME'?" with a known name similar to this one; "." if none is."""
    return did_you_mean(str(name), known)


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
