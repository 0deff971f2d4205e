"""Rows of an Arrow table as records: what CSV and Parquet have in common.

A column of numbers or text is a field of one value; a column of lists, or the columns `name_0`
to `name_{n-1}`, are a field of several. Without a schema every column is a field as it is:
floating numbers become float32, integers and booleans int64, text bytes.

An empty cell is an error: what it should count as is for who made the data to say.

Which file a row lies in is not known here.

Callers: `csv.py`, `parquet.py`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticdl.data import example
from elasticdl.data.field import STRING, Field
from elasticdl.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.data.schema import Schema
    from elasticdl.data.units import Picked

    Array: TypeAlias = np.ndarray[Any, Any]


def decode_table(
    table: pa.Table, schema: Schema | None, where: Callable[[int], str]
) -> list[Record]:
    """Return the rows of a table as records.

    Args:
        table: Rows.
        schema: What the user's `data_schema()` says; None takes the columns as they are.
        where: What to call row i in an error message.

    Raises:
        SchemaError: A cell is empty, a column is missing or of a type that is no field, or a
            value does not fit.
    """
    group = _TableGroup(table, schema, where)
    if schema is None:
        return example.decode_groups_schemaless([group], table.num_rows)
    return [*schema.decode_groups([group], table.num_rows, where)]


def encode_table(table: pa.Table, where: Callable[[int], str]) -> list[bytes]:
    """Return the rows of a table as serialized `tf.Example`s, columns as they are.

    Raises:
        SchemaError: A cell is empty, or a column is of a type that is no field.
    """
    return [example.encode(record) for record in decode_table(table, None, where)]


def columns_of(field: Field, names: Sequence[str]) -> list[str]:
    """Return the columns a field is made of, none if they are not there.

    Args:
        field: A field.
        names: The columns there are.

    Example:
        >>> columns_of(Field("x", (2,), np.dtype("int64")), ["x_0", "x_1", "y"])
        ['x_0', 'x_1']
    """
    if field.name in names:
        return [field.name]
    parts = [f"{field.name}_{i}" for i in range(field.size)]
    return parts if field.shape and set(parts) <= set(names) else []


class TableUnit:
    """Rows in memory, picked and decoded when they are wanted; see `units.Unit`.

    Args:
        table: The rows, only the columns that are needed.
    """

    def __init__(self, table: pa.Table) -> None:
        # Units may have different dictionaries, which cannot be joined.
        for i, column in enumerate(table.columns):
            if pa.types.is_dictionary(column.type):
                plain = column.cast(column.type.value_type)
                table = table.set_column(i, table.column_names[i], plain)
        # Of another file, a column of the same name may be of another type.
        self.table = table.combine_chunks().replace_schema_metadata()
        self.columns = str(self.table.schema)

    @property
    def memory_bytes(self) -> int:
        """How much memory the values take."""
        return int(self.table.nbytes)

    @staticmethod
    def joined(units: Sequence[TableUnit]) -> TableUnit | None:
        """Return the rows of several units as one; None if their columns differ."""
        if len({unit.columns for unit in units}) != 1:
            return None
        return TableUnit(pa.concat_tables([unit.table for unit in units]))

    @staticmethod
    def records(picked: Picked, schema: Schema | None) -> list[Record]:
        """Return the picked rows, decoded."""
        records: list[Any] = [None] * len(picked.rows)
        for places, table in TableUnit._tables(picked):
            where = functools.partial(_name_at, picked.name, places)
            for place, record in zip(
                places.tolist(), decode_table(table, schema, where), strict=True
            ):
                records[place] = record
        return records

    @staticmethod
    def serialized(picked: Picked) -> list[bytes]:
        """Return the picked rows as serialized `tf.Example`s."""
        return [example.encode(record) for record in TableUnit.records(picked, None)]

    @staticmethod
    def _tables(picked: Picked) -> Iterator[tuple[Array, pa.Table]]:
        """Yield the picked rows of all units with the same columns, and their places."""
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
    """Return rows, counted over all of some tables."""
    fixed = all(pa.types.is_primitive(column_type) for column_type in tables[0].schema.types)
    if len(tables) == 1 or fixed:
        return pa.concat_tables(tables).take(pa.array(rows))
    # Of texts and lists, all would be copied to take some.
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
    """The rows of a table in the form in which examples are decoded; see `example.Group`."""

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
            # Columns that are no field only stand in messages about those that are missing.
            self.kinds |= {name: "bytes" for name in table.column_names if name not in self.kinds}

    def column(self, name: str) -> example.Column:
        columns = [self._values(part) for part in self._parts[name]]
        values, counts = columns[0]
        if len(columns) > 1:
            for part, column in zip(self._parts[name], columns, strict=True):
                if not isinstance(column.counts, int) or column.counts != 1:
                    raise SchemaError(
                        f"{self._where(0)}: column {part!r} holds lists, and {name!r} is made of "
                        f"{len(columns)} columns of single values. Rename it."
                    )
            values = np.stack([column.values for column in columns], axis=1).reshape(-1)
            counts = len(columns)
        dtype = self._dtype(name)
        if values.dtype != dtype:
            values = self._cast(name, values, counts, dtype)
        return example.Column(values, counts)

    def raw(self, name: str, num_bytes: int) -> Array | None:
        values, counts = self.column(name)
        if counts != 1 or any(len(value) != num_bytes for value in values):
            return None
        return np.frombuffer(bytearray().join(values), np.uint8).reshape(-1, num_bytes)

    def _kind(self, name: str) -> example.Kind:
        """Return what a field is, integers and floating numbers as the schema wants them."""
        schema = self._table.schema
        types = {_value_type(schema.field(part).type) for part in self._parts[name]}
        kinds = {_arrow_kind(value_type) for value_type in types}
        if None in kinds:
            raise SchemaError(
                f"{self._where(0)}: column {self._parts[name][0]!r} has the type "
                f"{', '.join(map(str, types))}, which is neither number nor text. Turn it into "
                "one of these where the table is made, or leave it out of data_schema()."
            )
        if "bytes" in kinds:
            return "bytes"
        field = self._fields.get(name)
        if field is None or field.dtype == STRING:
            return "float" if "float" in kinds else "int64"
        return "float" if field.dtype.kind == "f" else "int64"

    def _dtype(self, name: str) -> np.dtype[Any]:
        """Return which dtype the values of a field are given out as."""
        kind = self.kinds[name]
        if kind == "bytes":
            return STRING
        if name in self._fields and self._fields[name].dtype != STRING:
            return self._fields[name].dtype
        return np.dtype(np.float32 if kind == "float" else np.int64)

    def _cast(self, name: str, values: Array, counts: int | Array, dtype: np.dtype[Any]) -> Array:
        row_of = np.repeat(np.arange(len(self.rows)), counts)
        parts = self._parts[name]

        def where(at: int) -> str:
            part = parts[at % len(parts)] if len(parts) > 1 else parts[0]
            return f"{self._where(int(row_of[at]))}: column {part!r}"

        return Field(name, (), dtype).cast(values, where)

    def _values(self, name: str) -> example.Column:
        """Return the values of one column; counts are those of its lists."""
        column = self._table[name].combine_chunks()
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        counts = np.ones(len(column), np.int64)
        self._check_filled(name, column, counts)
        while _is_list(column.type):
            lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
            counts = np.add.reduceat(np.append(lengths, 0), _starts(counts)) * (counts > 0)
            column = pc.list_flatten(column)
            self._check_filled(name, column, counts)
        one_count = bool((counts == counts[:1]).all()) and len(counts) > 0
        return example.Column(_to_numpy(column), int(counts[0]) if one_count else counts)

    def _check_filled(self, name: str, column: pa.Array, counts: Array) -> None:
        if column.null_count:
            at = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            row = int(np.repeat(np.arange(len(counts)), counts)[at])
            raise SchemaError(
                f"{self._where(row)}: column {name!r} has no value. Fill it in, leave out the "
                "row, or leave the column out of data_schema()."
            )


def _starts(counts: Array) -> Array:
    """Return where the values of each row start."""
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
    """Return the type of the single values of a column."""
    if pa.types.is_dictionary(arrow_type) or _is_list(arrow_type):
        return _value_type(arrow_type.value_type)
    return arrow_type


@functools.cache
def _arrow_kind(arrow_type: pa.DataType) -> example.Kind | None:
    types = pa.types
    if types.is_floating(arrow_type) or types.is_decimal(arrow_type):
        return "float"
    if types.is_integer(arrow_type) or types.is_boolean(arrow_type):
        return "int64"
    is_text = types.is_string(arrow_type) or types.is_large_string(arrow_type)
    # A column without any value has the type null; the empty cell is what must be reported.
    is_bytes = types.is_binary(arrow_type) or types.is_large_binary(arrow_type)
    if is_text or is_bytes or types.is_fixed_size_binary(arrow_type) or types.is_null(arrow_type):
        return "bytes"
    return None


def _to_numpy(column: pa.Array) -> Array:
    """Return the values of a column without lists, writable."""
    if _arrow_kind(column.type) == "bytes":
        values = np.empty(len(column), STRING)
        values[:] = column.cast(pa.large_binary()).to_pylist()
        return values
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    return np.array(column.to_numpy(zero_copy_only=False))
