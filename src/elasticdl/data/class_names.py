"""Stores the names of the classes that a column's numbers stand for (0 = cat, 1 = dog).

Hugging Face calls such a column a `ClassLabel`. Data in memory is stored with the names in the
metadata of its Arrow columns. Parquet files that were written by Hugging Face's
`Dataset.to_parquet`, or come from the Hub, have the names in Hugging Face's own metadata.

    ClassLabel --with_class_columns--> Parquet --class_columns_of--> names of the classes

`engines/class_numbers.py` compares these names with those of the model: if a class has another
number in the data than in the model, the model would learn or be evaluated on wrong labels.

Callers: `in_memory.py` stores the names, `parquet.py` reads them; errors about a label use
`no_label_advice` and `names_advice`.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

_KEY = b"elasticdl.classes"
_HUGGING_FACE_KEY = b"huggingface"


def no_label_advice(label: str | None = None, otherwise: str = "number the classes from 0") -> str:
    """Return advice, for an error, on the label -1, which Hugging Face writes for "no label".

    Args:
        label: Name of the label's column; None if it is unknown.
        otherwise: What to do about the label -1 of other data.
    """
    name, where = ("LABEL", ", where LABEL is its column") if label is None else (repr(label), "")
    return (
        'If the label is a ClassLabel of Hugging Face, -1 means "no label": leave these rows out, '
        f"with data = data.filter(lambda row: row[{name}] >= 0){where}. They can be predicted "
        f"afterwards. Otherwise, {otherwise}."
    )


def names_advice(label: str) -> str:
    """Return Python code, for an error or a note, that replaces class numbers by their names.

    It is for a Hugging Face data set `data`. `int2str` raises an error for the number -1, "no
    label"; `names[-1]` would be the last class.

    Args:
        label: Name of the label's column.
    """
    return (
        f"words = data.features[{label!r}].int2str(data[{label!r}]); data = data.remove_columns("
        f"{label!r}).add_column({label!r}, words)"
    )


def with_class_columns(schema: pa.Schema, names: Mapping[str, Sequence[str]]) -> pa.Schema:
    """Return a schema with the names of classes in the metadata of its columns.

    Args:
        schema: The schema.
        names: Column -> the names of its classes, in the order of their numbers from 0. Columns
            that the schema lacks are ignored.
    """
    for column, classes in names.items():
        if (index := schema.get_field_index(column)) >= 0:
            field = schema.field(index)
            metadata = {**(field.metadata or {}), _KEY: json.dumps(list(classes)).encode()}
            schema = schema.set(index, field.with_metadata(metadata))
    return schema


def class_columns_of(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return column -> names of its classes, ordered by number, for each column that has them.

    Example:
        >>> import pyarrow as pa
        >>> schema = pa.schema([("x", pa.float32()), ("y", pa.int64())])
        >>> class_columns_of(with_class_columns(schema, {"y": ["cat", "dog"]}))
        {'y': ('cat', 'dog')}
    """
    found = _of_hugging_face((schema.metadata or {}).get(_HUGGING_FACE_KEY))
    found = {name: classes for name, classes in found.items() if name in schema.names}
    for field in schema:
        if stored := (field.metadata or {}).get(_KEY):
            found[field.name] = tuple(json.loads(stored))
    return found


def _of_hugging_face(stored: bytes | None) -> dict[str, tuple[str, ...]]:
    """Return column -> names of its classes, from the JSON that Hugging Face stores as metadata.

    The result is empty if the JSON is missing or has another form.
    """
    features: Any = {}
    # The metadata of another version may look different; it only serves a check.
    with contextlib.suppress(ValueError, KeyError, TypeError):
        features = json.loads(stored or b"{}")["info"]["features"]
    return {
        name: tuple(map(str, feature["names"]))
        for name, feature in (features.items() if isinstance(features, dict) else ())
        if isinstance(feature, dict)
        and feature.get("_type") == "ClassLabel"
        and isinstance(feature.get("names"), list)
    }
