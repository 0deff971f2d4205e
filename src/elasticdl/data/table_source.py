"""Summarises the columns of a table source, and finds column types that fit all its files.

A warning names each text column in which nearly all values are numbers or dates.

Callers: `parquet.py`, `engines/table_params.py`.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from elasticdl.data.column_summary import ColumnSummary, Summarizer, kind_of
from elasticdl.data.data_index import InferringSource
from elasticdl.data.file_ranges import numbering_of
from elasticdl.data.odd_values import OddValues, because_of
from elasticdl.data.record_source import HasClassColumns
from elasticdl.data.wording import listed
from elasticdl.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasticdl.data.record_source import RecordSource, TableSource

_log = logging.getLogger("elasticdl")


def summarise(
    source: TableSource, on_rows: Callable[[int], None] = lambda _: None
) -> list[ColumnSummary]:
    """Return a summary of each column, over all rows.

    Args:
        source: The table; it is read once.
        on_rows: Called with the number of rows so far.

    Raises:
        SchemaError: The files have different columns.
        DataError: A file cannot be read.
    """
    summarizers = [Summarizer(field.name, field.type) for field in source.arrow_schema()]
    # The types that a source infers from cells are no one's intention; it warns of them itself.
    num_records = cast("RecordSource", source).num_records
    stated = [] if isinstance(source, InferringSource) else source.arrow_schema()
    odd = {
        each.name: OddValues(num_records, (), has_codes=True)
        for each in stated
        if kind_of(each.type) == "text"
    }
    num_rows = 0
    for table in source.arrow_tables():
        for name, values in odd.items():
            for chunk in table.column(name).chunks:
                values.add(chunk, chunk)
        for summarizer, column in zip(summarizers, table.columns, strict=True):
            for chunk in column.chunks:
                summarizer.add(chunk)
        num_rows += table.num_rows
        on_rows(num_rows)
    for name, values in odd.items():
        if found := values.found():
            value = found.batch[found.row].as_py()
            _log.warning(f"Column {name!r} is text {because_of(found, value)}")
    numbering = numbering_of(cast("RecordSource", source))
    classes = source.class_columns() if isinstance(source, HasClassColumns) else {}

    def summary(of: Summarizer) -> ColumnSummary:
        made = of.summary()
        at = "" if of.first_missing is None else numbering.name(of.first_missing)
        return replace(made, missing_at=at, class_names=tuple(classes.get(made.name, ())))

    return [summary(each) for each in summarizers]


def common_schema(schemas: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
    """Return the columns of the first file, with types that fit all files.

    Args:
        schemas: Name and columns of each file.

    Raises:
        SchemaError: The files have different columns, or no type fits all cells of a column.
    """
    first_name, first = schemas[0]
    different: dict[str, list[pa.Schema]] = {}
    for name, schema in schemas:
        if set(schema.names) != set(first.names):
            raise SchemaError(
                f"{name} has the columns {listed(schema.names)}; {first_name} has "
                f"{listed(first.names)}. Files that are read together need the same columns, "
                "unless data_schema() names those that are used."
            )
        if schema != first:
            different.setdefault(str(schema), []).append(schema)
    kinds = [_plain(first), *(_plain(each[0]) for each in different.values())]
    try:
        return pa.unify_schemas(kinds, promote_options="permissive")
    except pa.ArrowException as error:
        raise SchemaError(
            f"The files, {first_name} being the first, have different types in one column: "
            f"{error}. Write them with one type."
        ) from None


def _plain(schema: pa.Schema) -> pa.Schema:
    """Return a schema without metadata and with plain types: `string`, not a dictionary of strings.

    Files that differ only in these respects then have the same schema.
    """
    return pa.schema(
        (
            field.name,
            field.type.value_type if pa.types.is_dictionary(field.type) else field.type,
        )
        for field in schema
    )
