"""Handles records that lack fields of the schema, such as the label in prediction.

Only calling the user's input function shows which fields are labels, so it is tried on one record.

Callers: `record_data.py`.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import Record, leaves
from elasticdl.data.file_ranges import numbering_of
from elasticdl.data.schema import STRING, Field, MissingFieldError, Schema
from elasticdl.data.wording import all_of, did_you_mean, listed, rename_or_add
from elasticdl.definition import Mode, ModelDefinition, RecordInput
from elasticdl.engines.input_calls import make_batch
from elasticdl.engines.randomness import seeded
from elasticdl.errors import DataError, ElasticDLError, SchemaError, UserCodeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.data.record_source import RecordSource

_log = logging.getLogger("elasticdl")
# (Record, field) of which a warning was given.
_reported: set[tuple[str, str]] = set()


def without_labels(
    definition: ModelDefinition, source: RecordSource, schema: Schema
) -> tuple[Schema, list[Any]]:
    """Remove fields that the records lack, such as labels in prediction, from a schema.

    A missing field is fine if the features do not depend on it, as they do not on a label. To see
    that, the user's input function is called on one record several times, with different values in
    place of the missing fields: the features must not differ. If the function raises for such
    values, as `classes.index(label)` does, it must accept a record without the fields.

    Returns:
        The reduced schema, and the missing fields that must be filled with a placeholder in each
        record. The latter is empty if the function accepts records without the fields.

    Raises:
        DataError: The features depend on a missing field, or may do so and the records have one
            with a similar name; or the records have no field of the schema.
        UserCodeError: The function accepts neither these values nor records without the fields.
    """
    missing = [field for field in schema.fields if _is_missing(source, field)]
    if not missing:
        return schema, []
    present = [field for field in schema.fields if field not in missing]
    reduced = Schema(tuple(present))
    how = definition.input
    assert isinstance(how, RecordInput)  # noqa: S101 - only these have a schema
    where = functools.partial(_first_of, source)

    record = dict(source.read_records(0, 1, reduced)[0]) if present else {}

    def features_of(some: Record) -> list[Any]:
        with seeded(0):
            return leaves(make_batch(definition, how, [some], Mode.PREDICTION, where).features)

    def features_with(value: int | None) -> list[Any]:
        return features_of(record | {field.name: filled(field, value) for field in missing})

    try:
        first = features_with(0)
    except UserCodeError:
        # Raises where the function needs the fields, with the user's own line.
        try:
            features_of(dict(record))
        except UserCodeError as error:
            if present:
                raise
            raise _no_field(definition, schema, where(), _present(source, missing[0])) from error
        return reduced, []

    def moves_features(field: Field) -> bool:
        others = record | {each.name: filled(each, 0) for each in missing}
        changed = (features_of(others | {field.name: filled(field, v)}) for v in (1, None))
        return not all(all(map(np.array_equal, first, each)) for each in changed)

    for value in (1, None):
        if not all(map(np.array_equal, first, features_with(value))):
            # Name only the fields that the features depend on, not a missing label.
            needed = [field for field in missing if moves_features(field)]
            have = _present(source, needed[0]) or [field.name for field in present]
            raise _needed(definition, schema, where(), needed, have)
    unsure = [
        field for field in missing if not _is_label(definition, source, field, record, missing)
    ]
    _report_unsure(unsure, source, schema)
    return reduced, missing


def _needed(
    definition: ModelDefinition,
    schema: Schema,
    where: str,
    needed: Sequence[Field],
    have: Sequence[str],
) -> DataError:
    names, declared = [field.name for field in needed], needed[0].is_declared
    # The files of prebuilt models are right, and not the user's to change.
    who = f"{definition.origin} needs for the model's" if declared else "the model needs for its"
    return DataError(
        f"{where}: the records have no {all_of(map(repr, names))}, which {who} inputs. They have "
        f"{listed(have) or 'none of its fields'}{_advice(names, have, schema, declared=declared)}"
    )


def _is_label(
    definition: ModelDefinition,
    source: RecordSource,
    field: Field,
    record: Record,
    missing: Sequence[Field],
) -> bool:
    """Return whether the labels depend on a field on which the features do not depend.

    If neither does, the field may still be a feature, whose values in the trial are all unknown to
    the input function: words that are not in its vocabulary.

    Args:
        definition: The model definition.
        source: The records, to name one in an error.
        field: The field, which the records lack.
        record: One of the records.
        missing: All fields that the records lack.
    """
    how = definition.input
    assert isinstance(how, RecordInput)  # noqa: S101 - only these have a schema
    where = functools.partial(_first_of, source)
    others = {**record, **{each.name: filled(each, 0) for each in missing}}

    def labels_of(value: int) -> list[Any]:
        some = {**others, field.name: filled(field, value)}
        with seeded(0):
            return leaves(make_batch(definition, how, [some], Mode.EVALUATION, where).labels)

    try:
        return not all(map(np.array_equal, labels_of(0), labels_of(1)))
    except ElasticDLError:
        # A label must be one of the classes.
        return True


def _report_unsure(fields: Sequence[Field], source: RecordSource, schema: Schema) -> None:
    """Report fields that the records lack, and that may be features or labels.

    Raises:
        DataError: The records have a field with a similar name.
    """
    where = _first_of(source)
    for field in fields:
        have = _present(source, field) or []
        advice = rename_or_add([field.name], have, schema.names)
        if advice.startswith("Rename"):
            raise DataError(
                f"{where}: the records have no {field.name!r}, which data_schema() has. They have "
                f"{listed(have)}. {advice}."
            )
        if (where, field.name) in _reported:
            continue
        _reported.add((where, field.name))
        _log.warning(
            "%s: the records have no %r, which data_schema() has. If the model uses it, it counts "
            "as %s in every record.",
            where,
            field.name,
            "missing" if field.nullable else "an unknown value",
        )


def _no_field(
    definition: ModelDefinition, schema: Schema, where: str, have: Sequence[str] | None
) -> DataError:
    return DataError(
        f"{where}: the records have no field of data_schema() in {definition.origin}: "
        f"{listed(schema.names)}. They have {listed(have or ()) or 'no fields'}. Give the data by "
        "these names, such as a DataFrame with these columns."
    )


def _advice(missing: Sequence[str], have: Sequence[str], schema: Schema, *, declared: bool) -> str:
    """Return advice that completes an error message on missing fields.

    For example, `; did you mean 'label'?` or `. Add 'label' to the data.`

    Args:
        missing: Names of the fields.
        have: Names of the fields of the records.
        schema: All fields of the model.
        declared: Whether the user wrote the schema.
    """
    if declared:
        others = [name for name in have if name not in schema.names]
        return did_you_mean(missing[0], others) if len(missing) == 1 else "."
    return f". {rename_or_add(missing, have, schema.names)}."


def check_label(
    definition: ModelDefinition, source: RecordSource, schema: Schema, error: MissingFieldError
) -> None:
    """Raise a clearer error than `error` if the field that the records lack is the label.

    Returns if this cannot be determined; the caller then raises `error` itself.

    Args:
        definition: The model definition.
        source: The records to evaluate on.
        schema: The schema that the records do not match.
        error: The error about the missing field.

    Raises:
        MissingFieldError: The missing field is the label, which an evaluation needs.
        DataError: The model's inputs depend on the missing field.
    """
    try:
        reduced, missing = without_labels(definition, source, schema)
    except UserCodeError:
        return
    record = dict(source.read_records(0, 1, reduced)[0])
    if missing and all(_is_label(definition, source, f, record, missing) for f in missing):
        names = all_of(repr(field.name) for field in missing)
        raise MissingFieldError(
            f"{_first_of(source)}: the records have no {names}, the label of the "
            "model. An evaluation compares predictions with it. Add it to "
            "the data, or use predict for data without it."
        ) from error


def _is_missing(source: RecordSource, field: Field) -> bool:
    """Return whether the records lack a field.

    The reader decides, because tables store a field with several values in several columns, and
    columns that are not in the schema need not be readable.
    """
    return _present(source, field) is not None


def _present(source: RecordSource, field: Field) -> Sequence[str] | None:
    """Return None if the records have `field`, otherwise the names of all their fields."""
    try:
        source.read_records(0, 1, Schema((field,)))
    except MissingFieldError as error:
        return error.present
    except SchemaError:
        # The field exists; its problem is reported where it is read.
        return None
    return None


def filled(field: Field, value: int | None) -> np.ndarray[Any, Any]:
    """Return an array to fill in for a missing field, with the field's shape and type.

    Args:
        field: The field. An axis of unknown size gets the size 1.
        value: The number to fill it with; a string field gets its digits. None: the field's null
            value, or 0 if the field is not nullable.
    """
    if value is None and field.nullable:
        return field.missing(1)[0, ...]
    shape = (1,) if field.varies else field.shape
    number = value or 0
    return np.full(shape, b"%d" % number if field.dtype == STRING else number, field.dtype)


def _first_of(source: RecordSource) -> str:
    """Return text that names the first record by file and number, for error messages."""
    return numbering_of(source).name_some(np.arange(1))
