"""Decodes rows of Arrow tables to records; shared by the readers of CSV and Parquet.

A column of numbers or strings is a field of one value; a column of lists, or the columns `name_0`
to `name_{n-1}`, are a field of several values. Without a schema every column is a separate field:
floating numbers and decimals become float32, integers int64, booleans bool, strings bytes; dates
and times become float64, seconds since 1970-01-01 UTC (times of day: since midnight). Columns that
cannot be a field (structs, maps, columns of Arrow's type null) are then left out, with a warning.

An empty cell is an error, unless the field is nullable in the schema.

Callers pass a function that names the file and number of a row, for error messages.

Callers: `csv.py`, `parquet.py`.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticdl.data import example
from elasticdl.data.array_shapes import check_shape, shape_of
from elasticdl.data.column_summary import kind_of
from elasticdl.data.field import STRING, Field, as_text, digits
from elasticdl.data.schema import NoValueError
from elasticdl.data.table_times import is_time, parsed_seconds, seconds
from elasticdl.data.type_words import in_words
from elasticdl.data.wording import listed, shown
from elasticdl.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.data.schema import Schema
    from elasticdl.data.units import Selection

    Array: TypeAlias = np.ndarray[Any, Any]


_log = logging.getLogger("elasticdl")
# The largest magnitude up to which float32 has all whole numbers.
_EXACT_IN_FLOAT32 = 2**24
# Names of columns in warnings.
_rounded: set[str] = set()


def decode_table(
    table: pa.Table, schema: Schema | None, where: Callable[[int], str]
) -> list[Record]:
    """Return the rows of a table as records.

    Args:
        table: Rows.
        schema: The result of the user's `data_schema()`. None: each column becomes a field.
        where: Function (i) -> name of row i, for an error message.

    Raises:
        SchemaError: A cell is empty, a column of the schema is missing or has a type that cannot be
            a field, or a value does not fit.
    """
    if schema is None:
        odd = {field.name: field.type for field in table.schema if why_no_field(field.type)}
        if odd:
            _note_left_out(tuple(odd.items()))
            table = table.drop_columns(list(odd))
    group = _TableGroup(table, schema, where)
    if schema is None:
        return _shaped(example.decode_groups_schemaless([group], table.num_rows), table)
    return [*schema.decode_groups([group], table.num_rows, where)]


def _shaped(records: list[Record], table: pa.Table) -> list[Record]:
    """Reshape values to the shapes that `array_shapes.with_shape` stored in the table's metadata.

    Args:
        records: Rows of the table, decoded without a schema, so with 1-D values.
        table: The table.
    """
    stored_shapes = {field.name: shape_of(field) for field in table.schema if field.metadata}
    shapes = {name: shape for name, shape in stored_shapes.items() if shape is not None}
    if not shapes:
        return records
    return [
        {name: a.reshape(shapes[name]) if name in shapes else a for name, a in record.items()}
        for record in records
    ]


def encode_table(table: pa.Table, where: Callable[[int], str]) -> list[bytes]:
    """Return the rows of a table as serialized `tf.Example`s, each column as a field.

    Raises:
        SchemaError: A cell is empty.
    """
    return [_encoded(record) for record in decode_table(table, None, where)]


def _encoded(record: Record) -> bytes:
    """Return a record as a serialized `tf.Example`.

    Booleans become 0 and 1. float64 values become raw bytes, as a schema stores them
    (`stored_field.py`).
    """

    def storable(values: Array) -> Any:
        if values.dtype == np.float64:
            return [values.astype("<f8").tobytes()]
        return values.astype(np.int64) if values.dtype == bool else values

    return example.encode({name: storable(values) for name, values in record.items()})


def why_no_field(arrow_type: pa.DataType) -> str:
    """Return why columns of a type cannot be a field; empty if they can.

    Example:
        >>> why_no_field(pa.struct([("x", pa.int64())])), why_no_field(pa.date32())
        ('a model cannot read structs', '')
    """
    value_type = _value_type(arrow_type)
    if pa.types.is_null(value_type):
        return "it has no value"
    return "" if _arrow_kind(value_type) else f"a model cannot read {in_words(value_type)}"


@functools.cache
def _note_left_out(columns: tuple[tuple[str, pa.DataType], ...]) -> None:
    """Log once per process that columns are left out, and why.

    Args:
        columns: Name and type of each of them.
    """
    reasons = [
        "no values and no type" if pa.types.is_null(kind) else in_words(kind)
        for kind in (_value_type(arrow_type) for _, arrow_type in columns)
    ]
    names = [name for name, _ in columns]
    if len(names) == 1:
        what = f"Column {names[0]!r} is left out of the records: it has {reasons[0]}"
    else:
        what = f"Columns {listed(names)} are left out of the records: " + ", ".join(
            f"{name!r} has {reason}" for name, reason in zip(names, reasons, strict=True)
        )
    _log.warning(f"{what}, which a model cannot read. `elasticdl data show` shows all columns.")


def _note_rounding(name: str, values: Array) -> None:
    """Log once per process that values of a column are rounded, as float32 has too few digits.

    Without a schema, numbers with a fraction are read as float32.
    """
    large = values[np.abs(values) > _EXACT_IN_FLOAT32]
    with np.errstate(over="ignore"):
        rounded = large[large.astype(np.float32) != large]
    if rounded.size and name not in _rounded:
        _rounded.add(name)
        value = float(rounded[0])
        _log.warning(
            "Column %r has values such as %r, which becomes %r: without a data_schema(), numbers "
            "with a fraction are read as float32. To keep all digits, give the column the dtype "
            "float64 in data_schema().",
            name,
            value,
            float(np.float32(value)),
        )


def columns_of(field: Field, names: Sequence[str]) -> list[str]:
    """Return the columns that make up a field; empty if they do not exist.

    Args:
        field: A field.
        names: The existing columns.

    Example:
        >>> columns_of(Field("x", (2,), np.dtype("int64")), ["x_0", "x_1", "y"])
        ['x_0', 'x_1']
    """
    if field.name in names:
        return [field.name]
    parts = [f"{field.name}_{i}" for i in range(field.size)]
    return parts if field.shape and set(parts) <= set(names) else []


class TableUnit:
    """A unit of table rows in memory, decoded on demand; see `units.Unit`.

    Args:
        table: The rows, with only the columns that the schema needs.
    """

    def __init__(self, table: pa.Table) -> None:
        # Units may have different dictionaries, which cannot be joined.
        for i, column in enumerate(table.columns):
            if pa.types.is_dictionary(column.type):
                plain = column.cast(column.type.value_type)
                table = table.set_column(i, table.column_names[i], plain)
        # In another file, a column of the same name may have another type.
        self.table = table.combine_chunks().replace_schema_metadata()
        self.columns = str(self.table.schema)

    @property
    def memory_bytes(self) -> int:
        """Memory of the values, in bytes."""
        return int(self.table.nbytes)

    @staticmethod
    def joined(units: Sequence[TableUnit]) -> TableUnit | None:
        """Return the rows of several units as one; None if their columns differ."""
        if len({unit.columns for unit in units}) != 1:
            return None
        return TableUnit(pa.concat_tables([unit.table for unit in units]))

    @staticmethod
    def records(picked: Selection, schema: Schema | None) -> list[Record]:
        """Decode rows of one or more units; see `units.Unit.records`."""
        records: list[Any] = [None] * len(picked.rows)
        for places, table in TableUnit._tables(picked):
            where = functools.partial(_name_at, picked.name, places)
            for place, record in zip(
                places.tolist(), decode_table(table, schema, where), strict=True
            ):
                records[place] = record
        return records

    @staticmethod
    def serialized(picked: Selection) -> list[bytes]:
        """Return rows as serialized `tf.Example`s; see `units.Unit.serialized`."""
        return [_encoded(record) for record in TableUnit.records(picked, None)]

    @staticmethod
    def _tables(picked: Selection) -> Iterator[tuple[Array, pa.Table]]:
        """Collect the picked rows into one table for each set of columns.

        Units of different files may differ in the names or types of their columns.

        Yields:
            Positions of the rows in `picked`, and a table of these rows in this order.
        """
        by_columns: dict[str, list[int]] = {}
        for index, unit in enumerate(picked.units):
            by_columns.setdefault(unit.columns, []).append(index)
        for indices in by_columns.values():
            tables = [picked.units[index].table for index in indices]
            bases = np.full(len(picked.units), -1, np.int64)
            bases[indices] = _starts(np.array([table.num_rows for table in tables], np.int64))
            base = bases[picked.which]
            places = np.flatnonzero(base >= 0)
            if len(places):
                rows = base[places] + picked.rows[places]
                yield places, _taken(tables, rows)


def _taken(tables: Sequence[pa.Table], rows: Array) -> pa.Table:
    """Pick rows from several tables.

    Args:
        tables: Tables with the same columns.
        rows: Numbers of the rows, counted over all tables, in the order of the result.
    """
    fixed = all(pa.types.is_primitive(column_type) for column_type in tables[0].schema.types)
    if len(tables) == 1 or fixed:
        return pa.concat_tables(tables).take(pa.array(rows))
    # For strings and lists, taking some rows of joined tables would copy all of them.
    order = np.argsort(rows, kind="stable")
    borders = np.cumsum([0, *(table.num_rows for table in tables)])
    cuts = np.searchsorted(rows[order], borders)
    pieces = [
        table.take(pa.array(rows[order[start:stop]] - border))
        for table, start, stop, border in zip(tables, cuts, cuts[1:], borders, strict=False)
        if stop > start
    ]
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return pa.concat_tables(pieces).combine_chunks().take(pa.array(places))


def _name_at(name: Callable[[int], str], places: Array, row: int) -> str:
    return name(int(places[row]))


class _TableGroup:
    """The rows of a table as an `example.ExampleGroup`, so that they are decoded like examples.

    Args:
        table: The rows.
        schema: The fields to decode. None: each column becomes a field.
        where: Function (i) -> name of row i, for an error message.

    Raises:
        SchemaError: The type of a column does not suit its field in the schema.
    """

    may_lack_fields = False
    conversion_advice = "Convert the column, as with astype() in pandas"

    def __init__(self, table: pa.Table, schema: Schema | None, where: Callable[[int], str]) -> None:
        self.rows = range(table.num_rows)
        self._table = table
        self._where = where
        fields = () if schema is None else schema.fields
        self._fields = {field.name: field for field in fields}
        self._parts = {field.name: columns_of(field, table.column_names) for field in fields}
        if schema is None:
            self._parts = {name: [name] for name in table.column_names}
        self.kinds = {name: self._kind(name) for name, parts in self._parts.items() if parts}
        if schema is not None:
            # Columns that are not fields only appear in messages about missing ones.
            self.kinds |= {name: "bytes" for name in table.column_names if name not in self.kinds}

    def column(self, name: str) -> example.ExampleColumn:
        if name in self._fields and len(self._parts[name]) == 1:
            stored_shape = shape_of(self._table.schema.field(self._parts[name][0]))
            check_shape(self._fields[name], stored_shape, lambda: self._where(0))
        columns = [self._values(part, name) for part in self._parts[name]]
        values, counts = columns[0]
        if len(columns) > 1:
            for part, column in zip(self._parts[name], columns, strict=True):
                if np.any(np.asarray(column.counts) > 1):
                    raise SchemaError(
                        f"{self._where(0)}: column {part!r} holds lists, but {name!r} is made of "
                        f"{len(columns)} columns of single values. Rename it."
                    )
            singles = [_one_a_row(column, len(self.rows)) for column in columns]
            values = np.stack(singles, axis=1).reshape(-1)
            counts = len(columns)
        dtype = self._dtype(name)
        if values.dtype != dtype:
            values = self._cast(name, values, counts, dtype)
        return example.ExampleColumn(values, counts)

    def raw(self, name: str, num_bytes: int) -> Array | None:
        values, counts = self.column(name)
        if np.any(np.asarray(counts) != 1) or any(len(value) != num_bytes for value in values):
            return None
        return np.frombuffer(bytearray().join(values), np.uint8).reshape(-1, num_bytes)

    def _kind(self, name: str) -> example.Kind:
        """Return how a field is decoded: as `bytes`, `float` or `int64`.

        For a field of numbers, the dtype in the schema decides, not the type of the column.

        Raises:
            SchemaError: A column of the field is neither numbers, text nor times, or times would be
                rounded too much.
        """
        schema = self._table.schema
        field = self._fields.get(name)
        types = {_value_type(schema.field(part).type) for part in self._parts[name]}
        kinds = {_arrow_kind(value_type) for value_type in types}
        if None in kinds:
            raise SchemaError(
                f"{self._where(0)}: column {self._parts[name][0]!r} has the type "
                f"{', '.join(map(str, types))}, which is neither a number, text, a date nor a "
                "time. Convert it to one of these when the table is written, or leave it out of "
                "data_schema()."
            )
        if (
            field is not None
            and field.wide
            and field.dtype == STRING
            and not any(map(is_time, types))
        ):
            return "bytes"
        wants_number = field is not None and field.dtype != STRING
        if field is not None and not wants_number:
            self._check_no_times(field)
        if field is not None and wants_number and not field.time:
            self._check_no_text(field)
        if field is not None and field.dtype.name in ("float16", "float32"):
            self._check_precise(field, types)
        if wants_number and any(map(pa.types.is_null, types)):
            # Columns without any value do not decide the kind.
            kinds = {_arrow_kind(each) for each in types if not pa.types.is_null(each)}
        if "bytes" in kinds and not (field is not None and field.time):
            return "bytes"
        if field is None or field.dtype == STRING:
            return "float" if "float" in kinds else "int64"
        return "float" if field.dtype.kind == "f" else "int64"

    def _check_precise(self, field: Field, types: set[pa.DataType]) -> None:
        dates = [each for each in types if is_time(each)]
        if dates:
            raise SchemaError(
                f"{self._where(0)}: column {self._parts[field.name][0]!r} has the type {dates[0]}, "
                f"which is read as seconds since 1970; {field.requires(field.dtype.name)}, which "
                "cannot distinguish times less than two minutes apart. Use float64 or int64 there."
            )

    def _check_no_times(self, field: Field) -> None:
        """Check that no column of a text field has dates or times.

        Raises:
            SchemaError: A column has dates or times.
        """
        for part in self._parts[field.name]:
            column = self._table[part]
            kind = _value_type(column.type)
            if not is_time(kind) or column.null_count == len(column):
                continue
            row = column.is_valid().index(True).as_py()
            words = in_words(kind)
            if _is_list(column.type):
                words, how = f"lists of {words}", ""
            elif words in {"dates", "timestamps"}:
                how = f"pd.to_datetime(df[{part!r}]).dt.strftime('%Y-%m-%d') or the like"
            else:
                how = f"df[{part!r}].astype(str)"
            advice = field.advice(
                "Convert the column to text as in the training data"
                f"{f', in pandas with {how}' if how else ''}",
                "correct the dtype in data_schema()",
            )
            raise SchemaError(
                f"{self._where(row)}: column {part!r} holds {words}, such as "
                f"{str(column[row])!r}; {field.requires('text')}. {advice}"
            )

    def _check_no_text(self, field: Field) -> None:
        """Check that no column of a numeric field has text.

        Columns of bytes are accepted, because they may contain raw numbers.

        Raises:
            SchemaError: A column has text.
        """
        for part in self._parts[field.name]:
            if kind_of(self._table.schema.field(part).type) != "text":
                continue
            column = self._table[part].combine_chunks()
            rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
            if not len(rows):
                continue
            row, text = int(rows[0]), _text(column[int(rows[0])].as_py())
            if _is_number(text):
                advice = field.advice(
                    "Convert the column, as with pandas.to_numeric()",
                    "correct the dtype in data_schema()",
                )
                if not field.is_declared and text.isdigit() and len(text) > len(str(int(text))):
                    advice += (
                        " If the model was trained on a CSV file: digits are read as a number "
                        f"there, also with zeros before them, as {shown(text)}."
                    )
            elif field.is_declared:
                advice = f"Correct the values, or {as_text(field.name)}."
            else:
                empty = (
                    f", in pandas with pd.to_numeric(df[{part!r}], errors='coerce'), which makes "
                    "other text a missing value"
                )
                advice = (
                    "A trained model expects the types of its training data, here numbers (or "
                    f"booleans). Convert the column{empty * field.nullable}."
                )
            raise SchemaError(
                f"{self._where(row)}: column {part!r} holds text, such as {shown(text)}; "
                f"{field.requires(field.dtype_name if field.is_declared else 'numbers')}. {advice}"
            )

    def _dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of the values that `column` returns for a field.

        Values that are read as bytes have the dtype `STRING`. Others have the dtype in the schema
        or, without one, float64 if they are times, else float32, int64 or bool.
        """
        kind = self.kinds[name]
        if kind == "bytes":
            return STRING
        if name in self._fields and self._fields[name].dtype != STRING:
            return self._fields[name].dtype
        types = [_value_type(self._table.schema.field(p).type) for p in self._parts[name]]
        if any(map(is_time, types)):
            # Seconds since 1970 have more digits than float32 can represent.
            return np.dtype(np.float64)
        if not self._fields and all(map(pa.types.is_boolean, types)):
            return np.dtype(bool)
        return np.dtype(np.float32 if kind == "float" else np.int64)

    def _cast(self, name: str, values: Array, counts: int | Array, dtype: np.dtype[Any]) -> Array:
        row_of = np.repeat(np.arange(len(self.rows)), counts)
        parts = self._parts[name]

        def where(at: int) -> str:
            part = parts[at % len(parts)] if len(parts) > 1 else parts[0]
            return f"{self._where(int(row_of[at]))}: column {part!r}"

        return Field(name, (), dtype).cast(values, where)

    def _values(self, name: str, field_name: str) -> example.ExampleColumn:
        """Return the values of one column, and how many each row has.

        A row has one value, or as many as its list has; none if it is missing.

        Args:
            name: Name of the column.
            field_name: Name of the field that consists of this column, or of it and other columns.

        Raises:
            SchemaError: A value is missing and the field is not nullable, or cannot be converted.
        """
        field = self._fields.get(field_name)
        nullable = field is not None and field.nullable
        column = _plain(self._table[name].combine_chunks())
        counts = np.ones(len(column), np.int64)
        within = False
        while True:
            if column.null_count:
                if not nullable or (within and _is_list(column.type)):
                    raise self._no_value(name, column, counts)
                if not within:
                    counts = column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
                    column = column.drop_null()
            if not _is_list(column.type):
                break
            lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
            counts[counts > 0] = np.add.reduceat(np.append(lengths, 0), _starts(counts))[counts > 0]
            column = _plain(pc.list_flatten(column))
            within = True
        one_count = bool((counts == counts[:1]).all()) and len(counts) > 0
        return example.ExampleColumn(
            self._numbers(name, field, column, counts), int(counts[0]) if one_count else counts
        )

    def _numbers(self, name: str, field: Field | None, column: pa.Array, counts: Array) -> Array:
        """Convert a column to numpy, in the way that its field requires.

        Text of a time field becomes seconds. For a wide field (`Field.wide`), numbers become their
        digits if it is a field of strings, else float64.

        Args:
            name: Name of the column.
            field: Field that the column belongs to; None without a schema.
            column: Its values; those of lists are flattened.
            counts: Number of values in each row, to name the row in an error.

        Raises:
            SchemaError: A value cannot be converted.
        """
        if field is not None and field.time and _arrow_kind(column.type) == "bytes":
            row_of = np.repeat(np.arange(len(self.rows)), counts)
            return parsed_seconds(
                column, lambda at: f"{self._where(int(row_of[at]))}: column {name!r}"
            )
        if field is not None and field.wide and _arrow_kind(column.type) != "bytes":
            if field.dtype == STRING:
                return _digits(column)
            # Times become seconds below.
            if not is_time(column.type):
                column = column.cast(pa.float64(), safe=False)
        try:
            values = _to_numpy(column)
        except pa.ArrowInvalid as error:
            raise SchemaError(f"{self._where(0)}: column {name!r}: {error}.") from None
        if not self._fields and values.dtype == np.float64 and not is_time(column.type):
            _note_rounding(name, values)
        return values

    def _no_value(self, name: str, column: pa.Array, counts: Array) -> NoValueError:
        at = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        row = int(np.repeat(np.arange(len(counts)), counts)[at])
        way_out = (
            'leave out the row, add "nullable": True to its field in data_schema(), or leave the '
            "column out there"
            if self._fields
            else "leave out the row, or write a data_schema() whose field has "
            '"nullable": True (for a prebuilt table model, describe the column in its param '
            "columns). If the model does not read this column, drop it in all data "
            f"(df.drop(columns=[{name!r}]) in pandas), or write a data_schema() that has only the "
            "fields that the model reads"
        )
        problem = f"{self._where(row)}: column {name!r} has no value"
        message = f"{problem}. Fill it in, {way_out}."
        return NoValueError(message, problem, name)


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _is_number(text: Any) -> bool:
    try:
        float(text)
    except (TypeError, ValueError):
        return False
    return True


def _one_a_row(column: example.ExampleColumn, num_rows: int) -> Array:
    """Return one value per row, with NaN or None for rows without a value.

    The columns of a field can then be combined, although they lack values in different rows.

    Args:
        column: Values of the rows; each row has one or none.
        num_rows: Number of rows.
    """
    values, counts = column
    if isinstance(counts, int) and counts == 1:
        return values
    dtype = STRING if values.dtype == STRING else np.dtype(np.float64)
    every = np.full(num_rows, None if dtype == STRING else np.nan, dtype)
    every[np.broadcast_to(counts, num_rows) > 0] = values
    return every


def _plain(column: pa.Array) -> pa.Array:
    """Return a column with dictionary-encoded values replaced by plain ones."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _starts(counts: Array) -> Array:
    """Return the index of each row's first value, given the number of values in each row."""
    return np.concatenate(([0], np.cumsum(counts)[:-1]))


@functools.cache
def _is_list(arrow_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_list(arrow_type)
        or types.is_large_list(arrow_type)
        or types.is_fixed_size_list(arrow_type)
    )


@functools.cache
def _value_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return the type of a column's values, or for a column of lists, of the lists' items."""
    if pa.types.is_dictionary(arrow_type) or _is_list(arrow_type):
        return _value_type(arrow_type.value_type)
    return arrow_type


@functools.cache
def _arrow_kind(arrow_type: pa.DataType) -> example.Kind | None:
    types = pa.types
    if types.is_floating(arrow_type) or types.is_decimal(arrow_type) or is_time(arrow_type):
        return "float"
    if types.is_integer(arrow_type) or types.is_boolean(arrow_type):
        return "int64"
    # A column without any value has the type null; the empty cell is the error to report.
    if types.is_null(arrow_type) or any(is_kind(arrow_type) for is_kind in _BYTES):
        return "bytes"
    return None


_BYTES = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)


def _digits(column: pa.Array) -> Array:
    """Format numbers as decimal text, encoded as bytes; None where missing."""
    if pa.types.is_decimal(column.type):
        texts = [None if value is None else f"{value:f}" for value in column.to_pylist()]
        found = np.empty(len(texts), STRING)
        for i, text in enumerate(texts):
            if text is not None:
                whole, _, part = text.partition(".")
                found[i] = (text if part.strip("0") else whole).encode()
        return found
    filled = column.fill_null(0 if not pa.types.is_boolean(column.type) else False)
    found = digits(filled.to_numpy(zero_copy_only=False))
    if column.null_count:
        found[column.is_null().to_numpy(zero_copy_only=False)] = None
    return found


def _to_numpy(column: pa.Array) -> Array:
    """Return the values of a column (not of lists) as a writable array; NaN or None if missing."""
    if _arrow_kind(column.type) == "bytes":
        values = np.empty(len(column), STRING)
        if pa.types.is_string_view(column.type):
            column = column.cast(pa.large_string())
        values[:] = column.cast(pa.large_binary()).to_pylist()
        return values
    if is_time(column.type):
        return seconds(column)
    if pa.types.is_decimal(column.type) or column.null_count:
        # Integers and booleans can represent missing values only in a floating dtype.
        column = column.cast(pa.float64())
    return np.array(column.to_numpy(zero_copy_only=False))
