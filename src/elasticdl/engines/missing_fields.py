"""Handles records that lack fields of the schema, such as the label in prediction.

Only calling the user's input function shows which fields are labels, so it is tried on one record.

Callers: `record_data.py`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import Batch, Record, leaves
from elasticdl.data.file_ranges import numbering_of
from elasticdl.data.schema import STRING, Field, MissingFieldError, Schema
from elasticdl.data.wording import all_of, listed, rename_or_add, to_rename
from elasticdl.definition import Mode, ModelDefinition, RecordInput
from elasticdl.did_you_mean import did_you_mean, nearest
from elasticdl.engines import input_checks
from elasticdl.engines.input_calls import make_batch
from elasticdl.engines.randomness import seeded
from elasticdl.errors import DataError, ElasticDLError, SchemaError, UserCodeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.data.record_source import RecordSource

_log = logging.getLogger("elasticdl")
# (Model, field, advice) of which a warning was given.
_reported: set[tuple[str, str, str]] = set()
# Of more fields, none is tried for being the label.
_MAX_TRIED = 100


def without_labels(
    definition: ModelDefinition, source: RecordSource, schema: Schema, *, reports: bool = True
) -> tuple[Schema, list[Any]]:
    """Remove fields that the records lack, such as labels in prediction, from a schema.

    A missing field is fine if the features do not depend on it, as they do not on a label. To see
    that, the user's input function is called on one record several times, with different values in
    place of the missing fields: the features must not differ. If the function raises for such
    values, as `classes.index(label)` does, it must accept a record without the fields.

    Args:
        definition: The model definition.
        source: The records.
        schema: The schema of the model's records.
        reports: Whether to warn of a missing field that may be a feature although the trial did not
            show it.

    Returns:
        The reduced schema, and the missing fields that must be filled with a placeholder in each
        record. The latter is empty if the function accepts records without the fields.

    Raises:
        DataError: The features depend on a missing field, or the records have no field of the
            schema.
        UserCodeError: The function accepts neither these values nor records without the fields.
    """
    missing = [field for field in schema.fields if _is_missing(source, field)]
    if not missing:
        return schema, []
    present = [field for field in schema.fields if field not in missing]
    reduced = Schema(tuple(present))
    record = dict(source.read_records(0, 1, reduced)[0]) if present else {}
    trial = _Trial(definition, source, record, missing)
    try:
        trial.features_with({})
    except UserCodeError:
        # Raises where the function needs the fields, with the user's own line.
        try:
            trial.features_of(record)
        except UserCodeError as error:
            if present:
                raise
            have = _present(source, missing[0])
            raise _no_field(definition, schema, _first_of(source), have) from error
        return reduced, []
    if needed := trial.needed():
        have = _present(source, needed[0]) or [field.name for field in present]
        raise _needed(definition, schema, _first_of(source), needed, have)
    if reports:
        possible, are_labels_known = trial.possible_features(present)
        if are_labels_known and (needed := [field for field in possible if trial.reads(field)]):
            raise _needed(
                definition, schema, _first_of(source), needed, _present(source, needed[0]) or []
            )
        for field in possible:
            _report(definition, field, _present(source, field) or [], schema)
    return reduced, missing


class _Trial:
    """Calls of the user's input function on one record with values in place of missing fields.

    Args:
        definition: The model definition.
        source: The records, to name one in an error.
        record: The first record.
        missing: The fields that the records lack.
    """

    def __init__(
        self,
        definition: ModelDefinition,
        source: RecordSource,
        record: Record,
        missing: Sequence[Field],
    ) -> None:
        self._definition, self._source = definition, source
        self._record, self._missing = record, missing

    def needed(self) -> list[Field]:
        """Return the missing fields on which the features depend.

        Features that differ in two equal calls, because the function draws random numbers of its
        own, are not compared.
        """
        first = self.features_with({})
        compared = np.array(_same_each(first, self.features_with({})), bool)

        def moves_features(fields: Sequence[Field]) -> bool:
            for value in (1, None):
                values = {field.name: filled(field, value) for field in fields}
                # The function may accept only some values of a label, such as 0.
                with contextlib.suppress(ElasticDLError):
                    same = np.array(_same_each(first, self.features_with(values)), bool)
                    if (compared & ~same).any():
                        return True
            return False

        # Name only the fields that the features depend on, not a missing label.
        found = [each for each in self._missing if moves_features([each])]
        return found or ([*self._missing] if moves_features(self._missing) else [])

    def possible_features(self, present: Sequence[Field]) -> tuple[list[Field], bool]:
        """Return the missing fields that may be features, and whether other fields are all labels.

        They may be features although `needed` does not show it: the values in the trial may all be
        unknown to the input function, such as words that are not in its vocabulary. A single
        missing field may as well be a label of which this is true, such as `label == b"yes"`,
        unless it is nullable or the records have the label.

        Args:
            present: The fields that the records have.
        """
        labels = [field for field in self._missing if self._is_label(field)]
        others = [field for field in self._missing if field not in labels]
        if others and not labels and len(present) <= _MAX_TRIED:
            labels = [field for field in present if self._is_label(field)]
        possible = [field for field in others if labels or field.nullable]
        # Another label may have a field of its own, which the values of the trial do not show.
        return possible, bool(labels) and len(labels) >= self._num_labels()

    def _num_labels(self) -> float:
        try:
            batch = self._batch_of(self._filled({}), Mode.EVALUATION)
        except ElasticDLError:
            return math.inf
        return len([*leaves(batch.labels), *leaves(batch.weights)])

    def reads(self, field: Field) -> bool:
        """Return whether the input function, in prediction, fails or differs without a field."""
        record = self._filled({})
        del record[field.name]
        try:
            return not _are_same(self.features_of(record), self.features_with({}))
        except UserCodeError:
            return True

    def are_labels(self) -> bool:
        """Return whether the missing fields are labels."""
        return all(map(self._is_label, self._missing))

    def _is_label(self, field: Field) -> bool:
        """Return whether the labels, or the sample weights, depend on a field."""

        def labels_with(value: int) -> list[Any]:
            filled_in = self._filled({field.name: filled(field, value)})
            batch = self._batch_of(filled_in, Mode.EVALUATION)
            return [*leaves(batch.labels), *leaves(batch.weights)]

        try:
            base, again, other = labels_with(0), labels_with(0), labels_with(1)
        except ElasticDLError:
            # Probably a label, which must be one of the classes.
            return [*self._missing] == [field]
        return _are_same(base, again) and not _are_same(base, other)

    def features_with(self, values: Record) -> list[Any]:
        """Return the features of the record, with 0 for each missing field that is not given."""
        return self.features_of(self._filled(values))

    def features_of(self, record: Record) -> list[Any]:
        """Return the features of a record."""
        return leaves(self._batch_of(record, Mode.PREDICTION).features)

    def _filled(self, values: Record) -> dict[str, Any]:
        zeros = {field.name: filled(field, 0) for field in self._missing}
        return {**self._record, **zeros, **values}

    def _batch_of(self, record: Record, mode: Mode) -> Batch:
        how = self._definition.input
        assert isinstance(how, RecordInput)  # noqa: S101 - only these have a schema
        where = functools.partial(_first_of, self._source)
        with seeded(0, recurs=True):
            # Copies, because the function may change the record in place.
            return make_batch(self._definition, how, input_checks.copies([record]), mode, where)


def _are_same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(_same_each(one, other))


def _same_each(one: Sequence[Any], other: Sequence[Any]) -> list[bool]:
    """Return whether each of some arrays equals the other; False for all if the numbers differ."""
    if len(one) != len(other):
        return [False] * len(one)
    return [
        np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind in "fc")
        for a, b in zip(one, other, strict=True)
    ]


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
    advice, has_other_name = _advice(names, have, schema, declared=declared)
    # Not if one has another name in the data: an empty column would hide its values.
    if not has_other_name and any(field.nullable for field in needed):
        are_all = all(field.nullable for field in needed)
        may_be = "" if are_all else f" for {all_of(repr(f.name) for f in needed if f.nullable)}"
        advice += f" An empty column is enough{may_be} if the values are unknown."
    return DataError(
        f"{where}: the records have no {all_of(map(repr, names))}, which {who} inputs. They have "
        f"{listed(have) or 'none of its fields'}{advice}"
    )


def _report(definition: ModelDefinition, field: Field, have: Sequence[str], schema: Schema) -> None:
    """Report, once per model, a field that the records lack and that may be a feature."""
    advice = rename_or_add([field.name], have, schema.names)
    key = str(definition.origin), field.name, advice
    if key in _reported:
        return
    _reported.add(key)
    _log.warning(
        "%s: the data has no %r. If the model uses it, it is read as %s in every record%s.",
        definition.where("input"),
        field.name,
        "the text '0'" if field.dtype == STRING else "0",
        f". {advice}" if to_rename([field.name], have, schema.names) else "",
    )


def _no_field(
    definition: ModelDefinition, schema: Schema, where: str, have: Sequence[str] | None
) -> DataError:
    return DataError(
        f"{where}: the records have no field of data_schema() in {definition.origin}: "
        f"{listed(schema.names)}. They have {listed(have or ()) or 'no fields'}. Give the data by "
        "these names, such as a DataFrame with these columns."
    )


def _advice(
    missing: Sequence[str], have: Sequence[str], schema: Schema, *, declared: bool
) -> tuple[str, bool]:
    """Return advice that completes an error message, and whether it has a name to rename.

    For example, `; did you mean 'label'?` or `. Add 'label' to the data.`

    Args:
        missing: Names of the fields.
        have: Names of the fields of the records.
        schema: All fields of the model.
        declared: Whether the user wrote the schema.
    """
    if declared:
        others = [name for name in have if name not in schema.names]
        if len(missing) > 1 or nearest(missing[0], others) is None:
            return ".", False
        return did_you_mean(missing[0], others), True
    advice = f". {rename_or_add(missing, have, schema.names)}."
    return advice, bool(to_rename(missing, have, schema.names))


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
        reduced, missing = without_labels(definition, source, schema, reports=False)
    except UserCodeError:
        return
    if not missing:
        return
    record = dict(source.read_records(0, 1, reduced)[0]) if reduced.fields else {}
    if _Trial(definition, source, record, missing).are_labels():
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
