"""Plain column types: the few Arrow types to which the values of all databases are converted.

| In the database                       | Here                                                  |
|---------------------------------------|-------------------------------------------------------|
| NULL                                  | null                                                  |
| integers up to 64 bits                | the integer of that size                              |
| DECIMAL(p, s) up to 38 digits, HUGEINT | decimal, exact                                       |
| NUMERIC without digits, more than 38  | float64: 15 digits are kept                           |
| BOOLEAN, MySQL's TINYINT(1) and BIT(1) | bool                                                 |
| DATE, TIMESTAMP                       | date, timestamp; years 1 to 9999, others are rejected |
| TIMESTAMP WITH TIME ZONE              | timestamp in UTC                                      |
| strings, ENUM, UUID, JSON             | string                                                |
| BYTEA, BLOB                           | binary                                                |
| arrays of the above                   | list; several dimensions become one in PostgreSQL     |
| INTERVAL, UNION, BIT, money, ranges, geometry | rejected: convert it in the SELECT            |

Used by the files of the databases.
"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from elasticdl.data.type_words import in_words
from elasticdl.errors import UsageError
from elasticdl.sql.database_interface import DatabaseError, RowSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    Convert = Callable[[pa.Array], pa.Array]
    Plain = tuple[pa.DataType, Convert]

MAX_DIGITS = 38
"""Digits of the widest decimal that Arrow can compute with."""

_EPOCH = dt.date(1970, 1, 1)
_FIRST_DAY = (dt.date.min - _EPOCH).days
_LAST_DAY = (dt.date.max - _EPOCH).days
_PER_DAY = {"s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}


class UnreadableTypeError(Exception):
    """An unsupported column type; the message explains what to write in the SELECT instead."""


def plain_rows(
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    name: str,
    plain: Callable[[pa.Field], Plain] | None = None,
) -> RowSource:
    """Convert a driver's rows to plain types, the few Arrow types used for all databases.

    Args:
        schema: The driver's schema.
        batches: The rows; reading them may raise an error of the database.
        name: Name of the database, for errors.
        plain: Function (field of `schema`) -> the plain type of this column, and a function that
            converts an array of the driver's type to it. None: choose them with `plain_type`.

    Raises:
        DatabaseError: A column cannot be read. Can also be raised while the rows are read.
    """
    columns: list[Plain] = []
    for field in schema:
        try:
            columns.append(plain(field) if plain is not None else plain_type(field.type))
        except UnreadableTypeError as error:
            raise DatabaseError(f"{name}: column {field.name!r} cannot be read: {error}") from error
    found = pa.schema(
        pa.field(field.name, column[0]) for field, column in zip(schema, columns, strict=True)
    )
    converts = [column[1] for column in columns]
    return RowSource(found, _converted(found, converts, batches, name))


def _converted(
    schema: pa.Schema, converts: Sequence[Convert], batches: Iterable[pa.RecordBatch], name: str
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        arrays = []
        for field, convert, array in zip(schema, converts, batch.columns, strict=True):
            try:
                arrays.append(check_years(convert(array)))
            except (ValueError, ArithmeticError) as error:  # Arrow's errors are ValueErrors
                raise DatabaseError(f"{name}: column {field.name!r}: {error}") from error
        yield pa.record_batch(arrays, schema=schema)


def plain_type(found: pa.DataType) -> Plain:
    """Choose the simple type (integer, float, text, ...) as which a driver's Arrow column is read.

    Args:
        found: Type of the column, as the driver returns it.

    Returns:
        The Arrow type to convert the column to, and a function that converts an array to it.

    Raises:
        UnreadableTypeError: No simple type can hold such values.
    """
    types = pa.types
    if isinstance(found, pa.BaseExtensionType):
        return _plain_extension(found)
    if types.is_dictionary(found):
        value, convert = plain_type(found.value_type)
        return value, lambda array: convert(array.dictionary_decode())
    if types.is_list(found) or types.is_large_list(found) or types.is_fixed_size_list(found):
        return _plain_list(found)
    if types.is_interval(found) or types.is_duration(found):
        raise UnreadableTypeError(
            "an INTERVAL has no fixed length (a month has 28 to 31 days). Select a number "
            "instead, such as EXTRACT(EPOCH FROM the_column)."
        )
    if types.is_union(found):
        raise UnreadableTypeError("a UNION has no single type. Select one of its members.")
    if types.is_large_string(found) or types.is_string_view(found):
        return pa.string(), lambda array: array.cast(pa.string())
    if types.is_timestamp(found) and found.tz is not None:
        zoned = pa.timestamp(found.unit, tz="UTC")
        return zoned, lambda array: array.cast(zoned)
    return found, lambda array: array


def _plain_extension(found: pa.BaseExtensionType) -> Plain:
    name = found.extension_name
    if name == "arrow.uuid":
        return pa.string(), _uuid_texts
    if name == "arrow.json":
        return pa.string(), lambda array: array.storage.cast(pa.string())
    if name == "arrow.bool8":
        return pa.bool_(), lambda array: array.storage.cast(pa.bool_())
    shown = getattr(found, "type_name", name)
    raise UnreadableTypeError(
        f"{shown} is not supported. Convert it in the SELECT: CAST(the_column AS ...)."
    )


def _plain_list(found: pa.DataType) -> Plain:
    item, convert = plain_type(found.value_type)
    if item == found.value_type and not pa.types.is_large_list(found):
        return found, lambda array: array
    whole = pa.list_(item)

    def converted(array: pa.Array) -> pa.Array:
        array = array.cast(pa.list_(found.value_type))
        return pa.ListArray.from_arrays(
            array.offsets, convert(array.values), type=whole, mask=array.is_null()
        )

    return whole, converted


def _uuid_texts(array: pa.Array) -> pa.Array:
    texts = [
        None if value is None else str(uuid.UUID(bytes=value))
        for value in array.storage.to_pylist()
    ]
    return pa.array(texts, pa.string())


def check_years(array: pa.Array) -> pa.Array:
    """Check that an array's dates or times are in the years 1 to 9999; return it unchanged.

    Raises:
        ValueError: A value is infinite or outside of the years 1 to 9999. Python's dates, for
            example, cannot represent it.
    """
    if pa.types.is_date(array.type):
        numbers, per_day = array.cast(pa.date32()).view(pa.int32()), 1
    elif pa.types.is_timestamp(array.type):
        numbers, per_day = array.view(pa.int64()), _PER_DAY[array.type.unit]
    else:
        return array
    ends = pc.min_max(numbers)
    least, greatest = ends["min"].as_py(), ends["max"].as_py()
    if least is not None and (
        least < _FIRST_DAY * per_day or greatest >= (_LAST_DAY + 1) * per_day
    ):
        raise ValueError(
            "a timestamp is infinite or outside the years 1 to 9999. Select NULL instead, or "
            "leave the row out."
        )
    return array


def as_decimal(digits: int, scale: int) -> Plain:
    """Return the Arrow type of DECIMAL(digits, scale), and a function that casts an array to it.

    The function takes an array of strings: drivers return decimals as text. The type is float64 if
    `digits` is 0 or more than `MAX_DIGITS`, or if `scale` is negative or more than `digits`.
    """
    if not 0 < digits <= MAX_DIGITS or not 0 <= scale <= digits:
        return pa.float64(), lambda array: array.cast(pa.float64())
    exact = pa.decimal128(digits, scale)
    return exact, lambda array: array.cast(exact)


def to_write(rows: RowSource) -> RowSource:
    """Convert rows to the types that databases accept: 64-bit numbers, times in microseconds."""
    schema = pa.schema(pa.field(field.name, _wide(field.type)) for field in rows.schema)
    return RowSource(schema, (batch.cast(schema) for batch in rows.batches))


def _wide(found: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_uint64(found):
        return found
    if types.is_integer(found):
        return pa.int64()
    if types.is_floating(found):
        return pa.float64()
    if types.is_timestamp(found):
        return pa.timestamp("us", tz=found.tz)
    if types.is_date(found):
        return pa.date32()
    if types.is_large_string(found):
        return pa.string()
    if types.is_list(found) or types.is_large_list(found) or types.is_fixed_size_list(found):
        return pa.list_(_wide(found.value_type))
    return found


def written_type(found: pa.DataType, words: Mapping[str, str]) -> str:
    """Return the name of a database's type for values converted by `to_write`.

    Args:
        found: Arrow type of the values.
        words: Arrow type -> the database's type, such as `int64` -> `BIGINT`. The keys `decimal`,
            `list` and `time` stand for all types of that kind, `timestamp` and `timestamp with
            zone` for all timestamps. A database's type may contain `{item}`, for the type of a
            list's items, or `{digits}` and `{scale}` of a decimal, such as `{item}[]`.

    Raises:
        UsageError: The database has no such type.
    """
    if pa.types.is_decimal(found):
        return words["decimal"].format(digits=found.precision, scale=found.scale)
    if pa.types.is_list(found):
        return words["list"].format(item=written_type(found.value_type, words))
    if pa.types.is_time(found):
        return words["time"]
    if pa.types.is_timestamp(found):
        return words["timestamp" if found.tz is None else "timestamp with zone"]
    word = words.get(str(found))
    if word is None:
        raise UsageError(
            f"Columns of {in_words(found)} cannot be written to a table of this database."
        )
    return word
