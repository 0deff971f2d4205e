"""Columns of the input that are copied into its predictions: `--columns=passenger_id,name`.

A column of a table (CSV, Parquet, data in memory) keeps its type. CSV and RecordIO have no dates,
decimals and durations: the first two become strings, durations become seconds. Times of day are
strings everywhere. Missing values stay missing. A field of other records (RecordIO, TFRecord) is
copied if it has one value, or the same number of values, in each record. The label of an image is
the name of its class folder.

The records are read a second time, without the model's schema, which need not have these columns.

Callers: `phase.py`; `parquet.py` for the types of strings.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from elasticdl.data.image_folders import is_image
from elasticdl.data.record_source import HasClassNames
from elasticdl.data.split_source import whole
from elasticdl.data.type_words import in_words
from elasticdl.data.units import UnitSource
from elasticdl.data.wording import listed
from elasticdl.did_you_mean import did_you_mean
from elasticdl.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from elasticdl.data.record_source import RecordSource

    Array: TypeAlias = np.ndarray[Any, Any]

_LOOKED_AT = 100
_ARROW = "arrow"


def arrow_type(dtype: np.dtype[Any]) -> Any:
    """Return the Arrow type of a column whose values were converted to strings, to restore it.

    Args:
        dtype: The dtype of the column's array, in whose metadata `InputColumns` stores the type.

    Returns:
        The type of decimals, dates and time stamps. None for other columns, which are written
        without it.
    """
    metadata: Mapping[str, Any] = dtype.metadata or {}
    return metadata.get(_ARROW)


class InputColumns:
    """Reader of some columns of records, which are copied beside the predictions.

    Args:
        source: The records.
        names: Columns to read.

    Raises:
        UsageError: There is no such column, or its values cannot be copied.
        DataError: The records cannot be read.
    """

    def __init__(self, source: RecordSource, names: Sequence[str]) -> None:
        self._source, self._names = source, names
        self._units = source if isinstance(source, UnitSource) else None
        self._read: tuple[int, Any] = (-1, None)
        self._starts: list[int] = []
        self._like: dict[str, Array] = {}
        self._kinds: dict[str, Any] = {}
        self._is_csv = False
        if not names:
            return
        where = source.files[0].uri
        if self._units is not None and hasattr(self._unit(0), "table"):
            sizes = self._units.units(None).sizes.tolist()
            self._starts = list(accumulate(sizes, initial=0))
            from elasticdl.data.csv import CSVSource  # noqa: PLC0415 - imports pyarrow

            self._is_csv = isinstance(whole(source), CSVSource)
            first = self._unit(0).table
            self._check_known(first.column_names, where)
            self._kinds = {name: first.schema.field(name).type for name in names}
        else:
            stop = min(source.num_records, _LOOKED_AT)
            records = source.read_records(0, stop, None)
            self._check_known({name: None for record in records for name in record}, where)
            self._like = {
                name: next(r[name] for r in records if name in r and len(r[name])) for name in names
            }

    def _check_known(self, known: Any, where: str) -> None:
        unknown = next((name for name in self._names if name not in known), None)
        if unknown == "label" and (reason := getattr(self._source, "why_no_label", "")):
            raise UsageError(f"--columns: the images have no column 'label': {reason}")
        if unknown == "label" and is_image(where):
            from elasticdl.data.image_unit import no_class  # noqa: PLC0415 - imports Pillow

            raise UsageError(f"--columns: {no_class(where, unknown)}")
        if unknown is not None:
            raise UsageError(
                f"--columns: {where} has no column {unknown!r}"
                f"{did_you_mean(unknown, known)} It has {listed(known)}."
            )

    def between(self, start: int, stop: int) -> dict[str, Array]:
        """Return the columns of records `start` to `stop`; missing values are masked.

        Raises:
            DataError: The columns cannot be read, or records differ in the number of values.
            UsageError: A column is of a type that cannot be copied.
        """
        if not self._names:
            return {}
        if self._starts:
            parts = list(self._tables(start, stop))
            return {
                name: _joined([self._of_table(name, part) for part in parts])
                for name in self._names
            }
        records = self._source.read_records(start, stop, None)
        columns = {
            name: self._of_fields(name, [record.get(name) for record in records], start)
            for name in self._names
        }
        classes = self._source.classes if isinstance(self._source, HasClassNames) else ()
        if classes:
            from elasticdl.data.image_unit import LABEL  # noqa: PLC0415 - imports Pillow

            if LABEL in columns:
                columns[LABEL] = np.array(classes, np.str_)[columns[LABEL]]
        return columns

    # --- Tables -------------------------------------------------------------------------------

    def _unit(self, index: int) -> Any:
        if self._read[0] != index:
            assert self._units is not None  # noqa: S101 - the caller has checked
            self._read = (index, self._units.read_unit(index, None))
        return self._read[1]

    def _tables(self, start: int, stop: int) -> Iterator[Any]:
        while start < stop:
            index = bisect_right(self._starts, start) - 1
            end = min(stop, self._starts[index + 1])
            table = self._unit(index).table
            missing = next((name for name in self._names if name not in table.column_names), None)
            if missing is not None:
                raise DataError(
                    f"--columns: there is no column {missing!r} from record {start:,} on; other "
                    "files have it."
                )
            yield table.slice(start - self._starts[index], end - start)
            start = end

    def _of_table(self, name: str, table: Any) -> Array:
        column = table[name]
        if self._is_csv and str(column.type) == "binary":
            import pyarrow.compute as pc  # noqa: PLC0415 - slow import, needed only for tables

            # An empty cell is a missing value.
            column = pc.if_else(pc.equal(pc.binary_length(column), 0), None, column)
        return _of_arrow(name, column, self._kinds[name])

    # --- Other records ------------------------------------------------------------------------

    def _of_fields(self, name: str, values: Sequence[Array | None], start: int) -> Array:
        like = self._like[name]
        rows = np.zeros((len(values), *like.shape), like.dtype)
        mask = np.zeros(rows.shape, np.bool_)
        for row, value in enumerate(values):
            if value is None or not len(value):
                rows[row], mask[row] = like, True
            elif value.shape != like.shape:
                raise DataError(
                    f"--columns: {name!r} has {len(value)} values in record {start + row:,} and "
                    f"{len(like)} before. A column that is copied has the same number in each."
                )
            else:
                rows[row] = value
        found: Array = np.ma.array(rows, mask=mask) if mask.any() else rows
        return found[:, 0] if like.shape == (1,) else found


def _joined(arrays: Sequence[Array]) -> Array:
    if len(arrays) == 1:
        return arrays[0]
    are_masked = any(isinstance(array, np.ma.MaskedArray) for array in arrays)
    if not are_masked:
        return np.concatenate(arrays)
    joined: Array = np.ma.concatenate(arrays)  # type: ignore[no-untyped-call]
    types = {arrow_type(array.dtype) for array in arrays}
    # NumPy drops the metadata.
    return joined.astype(arrays[0].dtype) if len(types) == 1 and None not in types else joined


def _of_arrow(name: str, column: Any, first: Any) -> Array:
    """Convert an Arrow column to an array, whose dtype depends only on the column's type.

    Args:
        name: Name of the column.
        column: Some of its values.
        first: The column's type in the first file. Decimals and times of other files get this type.

    Raises:
        DataError: The values do not fit the type of `first`.
        UsageError: The type cannot be copied.
    """
    import pyarrow as pa  # noqa: PLC0415 - slow import, needed only for tables
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    from elasticdl.data.table_times import iso_text  # noqa: PLC0415 - imports pyarrow

    kinds = pa.types
    if column.type != first and (kinds.is_decimal(first) or kinds.is_temporal(first)):
        try:
            column = column.cast(first)
        except pa.ArrowException as error:
            raise DataError(
                f"--columns: {name!r} is {first} in the first file and {column.type} in another, "
                f"which does not fit: {error}. Write the files with one type."
            ) from error
    column, kind = column.combine_chunks(), column.type
    is_text = kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_null(kind)
    if kinds.is_nested(kind):
        raise UsageError(
            f"--columns: {name!r} holds {in_words(kind)}; only columns with one value in each row "
            "are copied. Copy a column that identifies the row, and join the others by it."
        )
    if kinds.is_floating(kind) or kinds.is_integer(kind) or kinds.is_boolean(kind):
        filled = column.fill_null(False if kinds.is_boolean(kind) else 0)
        values: Array = filled.to_numpy(zero_copy_only=False)
    elif kinds.is_duration(kind):
        values = column.fill_null(0).to_numpy(zero_copy_only=False)
    elif kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind):
        # Strings of a CSV file, which are not checked to be UTF-8.
        values = _texts([(each or b"").decode(errors="replace") for each in column.to_pylist()])
    else:
        texts = column if is_text else pc.cast(column, pa.string())
        # Arrow cannot read times of day from strings.
        is_typed = kinds.is_decimal(kind) or kinds.is_date(kind) or kinds.is_timestamp(kind)
        found = [each or "" for each in texts.to_pylist()]
        if kinds.is_timestamp(kind) or kinds.is_time(kind):
            found = [iso_text(each) for each in found]
        values = _texts(found, kind if is_typed else None)
    if not column.null_count:
        return values
    return np.ma.array(np.ma.getdata(values), mask=column.is_null().to_numpy(zero_copy_only=False))


def _texts(values: Sequence[str], kind: Any = None) -> Array:
    # An array of str would have the width of the longest one in every row. The mask indicates that
    # these objects are strings.
    dtype = np.dtype(object) if kind is None else np.dtype(object, metadata={_ARROW: kind})
    texts: Array = np.ma.array(np.empty(len(values), dtype), mask=False)
    texts[:] = values
    return texts
