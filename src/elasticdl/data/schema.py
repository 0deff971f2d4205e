"""Data schema: the fields of a record, from the user's `data_schema()`, and their encoding.

A schema is a list of fields. Records that do not fit are rejected with an error that names the
field and the source of the record, which the caller passes as `where`. No file is read here and no
framework is imported: a `tf.DType` is read through its attributes.

`field.py` converts values to fields, `stored_field.py` stores them.

Callers: the readers in this folder, `samples.py`, the dialects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from elasticdl.data import example
from elasticdl.data.field import STRING, Field
from elasticdl.data.stored_field import decoded_rows, stored_values
from elasticdl.data.wording import counted, listed, rename_or_add, shown
from elasticdl.did_you_mean import did_you_mean
from elasticdl.errors import DefinitionError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np

    from elasticdl.data.serialized import Serialized

    Array: TypeAlias = np.ndarray[Any, Any]

__all__ = ["STRING", "Field", "MissingFieldError", "NoValueError", "Schema"]


class MissingFieldError(SchemaError):
    """The records lack a field that a schema or a model requires.

    Args:
        message: The error message.
        present: Names of the fields that the records do have; empty if unknown.
    """

    def __init__(self, message: str, present: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.present = tuple(present)


class NoValueError(SchemaError):
    """A row of a table has no value in a column that must have one.

    Args:
        message: The error message, which ends with advice.
        problem: The message without its advice. A caller that knows more about the data, such as
            that a trained model does not need the column, gives other advice.
        column: Name of the column.
    """

    def __init__(self, message: str, problem: str = "", column: str = "") -> None:
        super().__init__(message)
        self.problem, self.column = problem, column


@dataclass(frozen=True)
class Schema:
    """The fields of every record, in order.

    Attributes:
        fields: At least one; their names are unique.
    """

    fields: tuple[Field, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields, in order."""
        return tuple(field.name for field in self.fields)

    @staticmethod
    def from_user(value: Any, where: str = "data_schema()") -> Schema:
        """Return the schema for a user's `data_schema()`.

        Args:
            value: Its result: a list of dicts with `name`, `shape` and `dtype`; a dtype is
                a `tf.DType`, a numpy dtype or its name, "string" for bytes and strings. With
                `"nullable": True` records may lack the field; with `"time": True` a string in a
                table is a date or a time. A `Schema` is returned unchanged.
            where: Its source, for an error message.

        Raises:
            DefinitionError: The value is invalid; the message contains it.

        Example:
            >>> schema = Schema.from_user([{"name": "x", "shape": [2], "dtype": "float32"}])
            >>> print(schema.fields[0])
            x: float32[2]
        """
        if isinstance(value, Schema):
            return value
        if not isinstance(value, (list, tuple)) or not value:
            raise DefinitionError(
                f"{where} returned {shown(value)}; expected a list with one dict for each field "
                'of a record, such as [{"name": "label", "shape": [1], "dtype": "int64"}].'
            )
        fields = tuple(
            Field.from_user(entry, f"{where}, entry {i}") for i, entry in enumerate(value)
        )
        names = [field.name for field in fields]
        for name in names:
            if names.count(name) > 1:
                raise DefinitionError(
                    f"{where} has {names.count(name)} fields named {name!r}; each field of a "
                    "record needs a unique name."
                )
        return Schema(fields)

    def undeclared(self) -> Schema:
        """Return the same schema, marked as not written by the user (`Field.is_declared`).

        Error messages then refer to the needs of the model instead of `data_schema()`.
        """
        return Schema(tuple(replace(field, is_declared=False) for field in self.fields))

    def to_json(self) -> str:
        """Return the schema as JSON, as it is stored with a trained model."""
        return json.dumps([field.entry() for field in self.fields])

    @staticmethod
    def from_json(text: str) -> Schema:
        """Return the schema that `to_json` wrote.

        Raises:
            DefinitionError: The string is not a schema.
        """
        try:
            value = json.loads(text)
        except ValueError as error:
            raise DefinitionError(f"The stored data schema is not JSON: {error}.") from None
        return Schema.from_user(value, "The stored data schema").undeclared()

    def encode(self, record: Mapping[str, Any] | Sequence[Any], where: str = "The record") -> bytes:
        """Return a record as a serialized `tf.Example`.

        Args:
            record: Field name -> value, or a tuple of values in the order of the fields. A
                value is an array of the field's shape, or a value that numpy converts to one; for
                a field of one value, any shape with one value.
            where: The name of the record in an error message.

        Returns:
            The same bytes for equal records.

        Raises:
            SchemaError: A field is missing, unknown or of the wrong shape; or a value would
                change: a string for a number, 3.5 for an integer, 300 for a uint8, 1e300 for a
                float32. Rounding to the precision of a floating dtype is not a change.
        """
        values = self._by_name(record, where)
        return example.encode(
            {
                field.name: stored_values(
                    field,
                    field.values(values[field.name], f"{where}, field {field.name!r}"),
                    f"{where}, field {field.name!r}",
                )
                for field in self.fields
            }
        )

    def decode_batch(
        self,
        records: Sequence[bytes] | Serialized,
        where: Callable[[int], str],
        optional: frozenset[str] = frozenset(),
    ) -> list[dict[str, Array]]:
        """Decode serialized `tf.Example`s.

        Args:
            records: The serialized examples. Fields that are not in the schema are left out.
            where: Function (i) -> name of record i of the batch, for an error message.
            optional: Names of fields that a record may lack (the label, in prediction); an absent
                field is left out of the record's dict.

        Returns:
            One dict per record, in the order of the fields: writable arrays of the field's shape
            and dtype.

        Raises:
            SchemaError: A record is not an example, or lacks a field, or the number or kind of a
                field's values is wrong.
        """
        return self.decode_groups(example.groups(records, where), len(records), where, optional)

    def decode_groups(
        self,
        groups: Iterable[example.ExampleGroup],
        num_records: int,
        where: Callable[[int], str],
        optional: frozenset[str] = frozenset(),
    ) -> list[dict[str, Array]]:
        """Decode records that are divided into groups with the same fields, which is fast.

        In a group, each field is decoded as one array over all its records. `decode_batch` divides
        serialized examples into such groups. The rows of a table are a single group.

        Args:
            groups: The groups. Each record is in exactly one of them.
            num_records: Number of records in all groups.
            where: Function (i) -> name of record i, for an error message.
            optional: Names of fields that a record may lack; an absent field is left out of its
                dict.

        Returns:
            One dict per record, with the arrays that `decode_batch` returns.

        Raises:
            SchemaError: A record is not an example, or lacks a field, or the number or kind of a
                field's values is wrong.
        """
        decoded: list[dict[str, Array]] = [{} for _ in range(num_records)]
        for group in groups:
            fields = self._fields_of(group, where, optional)
            columns = [decoded_rows(field, group, where) for field in fields]
            names = [field.name for field in fields]
            for row, values in zip(group.rows, zip(*columns, strict=True), strict=False):
                decoded[row] = dict(zip(names, values, strict=True))
        return decoded

    def _by_name(self, record: Mapping[str, Any] | Sequence[Any], where: str) -> Mapping[str, Any]:
        if isinstance(record, Mapping):
            for field in self.fields:
                if field.name not in record:
                    raise SchemaError(_missing(field, list(record), self.names, where))
            for name in record:
                if name not in self.names:
                    raise SchemaError(
                        f"{where}: field {name!r} is not in data_schema() (which has "
                        f"{listed(self.names)}){did_you_mean(name, self.names)} Add it there, "
                        "or leave it out of the record."
                    )
            return record
        if not isinstance(record, (tuple, list)):
            raise SchemaError(
                f"{where} is {shown(record)}; expected a dict by field name, or a tuple with "
                f"the values of {listed(self.names)} in this order."
            )
        if len(record) != len(self.fields):
            raise SchemaError(
                f"{where} has {counted(len(record), 'value')}; data_schema() has "
                f"{counted(len(self.fields), 'field')}: {listed(self.names)}. Return one value "
                "for each field, in this order."
            )
        return dict(zip(self.names, record, strict=True))

    def _fields_of(
        self, group: example.ExampleGroup, where: Callable[[int], str], optional: frozenset[str]
    ) -> list[Field]:
        fields = []
        for field in self.fields:
            if field.name in group.kinds or (field.nullable and group.may_lack_fields):
                fields.append(field)
            elif field.name not in optional:
                have = list(group.kinds)
                message = _missing(field, have, self.names, where(group.rows[0]))
                raise MissingFieldError(message, have)
        return fields


def _are_predictions(present: Sequence[str], needed: Sequence[str]) -> bool:
    """Return whether fields look like the columns of predictions: the key, then outputs."""
    return present[:1] == ["key"] and any(
        name == "prediction" or name.partition("_")[0] == "output"
        for name in present
        if name not in needed
    )


def _missing(field: Field, present: Sequence[str], needed: Sequence[str], where: str) -> str:
    have = f"it has {listed(present)}" if present else "it has none"
    what = f"{where}: field {field.name!r} is missing ({have})"
    # A user's own table may have such columns, too.
    origin = (
        " These look like the columns of a file that `elasticdl predict` wrote. If so, pass only "
        "the files or the folder with the records, such as --data=pictures."
        if _are_predictions(present, needed)
        else ""
    )
    if not field.is_declared:
        return (
            f"{what}; the model needs it.{origin} {rename_or_add([field.name], present, needed)}, "
            "or correct the model's params if they name it."
        )
    others = [name for name in present if name not in needed]
    return (
        f"{what}{did_you_mean(field.name, others)}{origin} data_schema() names the fields of "
        "every record: correct it there, or write the data again."
    )
