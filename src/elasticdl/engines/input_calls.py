"""Calls a user's input function on records, checks the returned batch, and explains errors.

    batch = make_batch(definition, definition.input, records, Mode.TRAINING, where)

Callers: `record_data.py`, `missing_fields.py`.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import Batch, Record, RecordNames, Remake, batch_of, leaves
from elasticdl.data.class_weights import with_class_weights
from elasticdl.data.wording import counted, listed
from elasticdl.definition import Mode, ModelDefinition, RecordInput
from elasticdl.did_you_mean import did_you_mean, nearest
from elasticdl.engines import input_checks
from elasticdl.engines.randomness import seeded
from elasticdl.engines.user_calls import calling
from elasticdl.errors import (
    DefinitionError,
    ElasticDLError,
    SchemaError,
    UserCodeError,
    raised_at,
    users_traceback,
)
from elasticdl.sharding.permutation import derive_seed
from elasticdl.training.input_words import LABELS, how_to_resize, images_of_two_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Of np.stack, np.array, torch.stack and tf.stack.
_NEEDS_ONE_SHAPE = re.compile(
    "must have the same shape|inhomogeneous shape|to be equal size|Shapes of all inputs must match"
)


def make_batch(
    definition: ModelDefinition,
    how: RecordInput,
    records: Sequence[Record],
    mode: Mode,
    where: Callable[[], str],
) -> Batch:
    """Run the user's input function on decoded records.

    Args:
        definition: The model definition that the function belongs to.
        how: The input function.
        records: The records of one minibatch.
        mode: Purpose of the batch.
        where: Function () -> names of the records, for an error message.

    Raises:
        UserCodeError: The function raised. The error names the records and contains the user's
            traceback.
        DefinitionError: The function did not return a batch.
    """

    def made(some: Sequence[Record]) -> Batch:
        return _made(definition, how, some, mode, where)

    batch = made(records)
    if mode is Mode.TRAINING:
        location = str(definition.where("input"))
        input_checks.check(location, records, batch, made)
        if input_checks.has_varying_lengths(location, batch):
            again = functools.partial(_made_again, definition, how, where=where)
            batch = replace(batch, remake=Remake(records, again))
    if isinstance(where, RecordNames) and batch.num_examples != len(records):
        where = where.__call__
    return by_class(definition, replace(batch, where=where), mode)


def _made_again(
    definition: ModelDefinition,
    how: RecordInput,
    records: Sequence[Record],
    seed: int,
    *,
    where: Callable[[], str],
) -> Batch:
    # Copies, because the function may change the records in place.
    some = input_checks.copies(records)
    with seeded(derive_seed(seed, 5), recurs=True):
        return by_class(
            definition, _made(definition, how, some, Mode.TRAINING, where), Mode.TRAINING
        )


def _made(
    definition: ModelDefinition,
    how: RecordInput,
    records: Sequence[Record],
    mode: Mode,
    where: Callable[[], str],
) -> Batch:
    try:
        with calling(definition.where("input"), where):
            made = _call(how, records, mode)
    except SchemaError as error:
        # From a prebuilt model, which knows the value but not its record.
        raise SchemaError(f"{_refused(how, records, mode, where)}: {error}") from error
    except ElasticDLError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"{raised_at(error, definition.where('input'))}: the input function raised on "
            f"{where()}:\n{users_traceback(error)}{_missing_key(error, how, records, mode)}"
            f"{_different_sizes(error, definition, records, where)}"
        ) from error
    parts = made if isinstance(made, tuple) else (made,)
    if mode is Mode.PREDICTION and len(parts) > 1 and _are_of_no_record(parts[1]):
        # The function skipped records without labels: [... for r in records if "label" in r].
        parts = parts[:1]
    _check_none_empty(definition, how, records, parts, mode)
    batch = batch_of(
        parts, f"{definition.where('input')}: the input function made, from {len(records)} records,"
    )
    if batch.labels is None and mode is not Mode.PREDICTION:
        raise DefinitionError(
            f"{definition.where('input')}: the input function returned no labels in {mode.value}; "
            "expected (features, labels) or (features, labels, sample weights)."
        )
    return batch


def _call(how: RecordInput, records: Sequence[Record], mode: Mode) -> Any:
    return how.input_fn(records, mode) if how.takes_mode else how.input_fn(records)


def _refused(
    how: RecordInput, records: Sequence[Record], mode: Mode, where: Callable[[], str]
) -> str:
    """Find the record in a batch that makes an input function raise `SchemaError`.

    The function is called again, with one record at a time.

    Args:
        how: The input function.
        records: The records of the batch.
        mode: Purpose of the batch.
        where: Function () -> names of all the records.

    Returns:
        The name of the first record for which the function raises when called on it alone. The
        names of all records if there is none, or if `where` cannot name single records.
    """
    if isinstance(where, RecordNames):
        for number, record in enumerate(records):
            try:
                _call(how, [record], mode)
            except SchemaError:
                return where.of_examples([number])
    return where()


def _missing_key(error: Exception, how: RecordInput, records: Sequence[Record], mode: Mode) -> str:
    """Return advice to append to an error if the input function read a missing field; else ""."""
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    if not isinstance(key, str) or not records or key in records[0]:
        return ""
    if how.schema is not None and key in how.schema.names:
        # Only in prediction, where a record may lack its label.
        return (
            f"\n  data_schema() has {key!r}, but the data does not. Add it to the data; if it is "
            f"the label, read it only from records that have it: if {key!r} in record."
        )
    # The field that was probably meant comes first.
    names = sorted(records[0], key=lambda name: name != nearest(key, records[0]))
    have = f"\n  The records have {listed(names)}{did_you_mean(key, names)}"
    if how.schema is None:
        have += _unnamed(key, records[0])
    else:
        have += f" Only fields in data_schema() are read: add {key!r} there if the data has it."
    if mode is Mode.PREDICTION:
        have += (
            f"\n  If {key!r} is the label: data to predict need none. Read it only where it is: "
            f'[... for record in records if "{key}" in record].'
        )
    return have


def _unnamed(key: str, record: Record) -> str:
    """Return advice to name the fields of a record that has those of unnamed data; else ""."""
    unnamed = "y" if key in LABELS else "x"
    if unnamed not in record or not record.keys() <= {"x", "y"}:
        return ""
    names = ", ".join(f'"{key if name == unnamed else name}": ...' for name in record)
    return f" Data in memory without names are called x and y; to name them: data={{{names}}}."


def _different_sizes(
    error: Exception,
    definition: ModelDefinition,
    records: Sequence[Record],
    where: Callable[[], str],
) -> str:
    """Return advice to append to an error if images of different sizes were stacked; else ""."""
    if getattr(definition.input, "schema", None) is not None or not _NEEDS_ONE_SHAPE.search(
        str(error)
    ):
        return ""
    if not (pair := images_of_two_sizes(records)):
        return ""
    of_both = f"{where.of_examples(pair)}: " if isinstance(where, RecordNames) else ""
    return f"\n  {of_both}{how_to_resize(records, pair, definition.create_model)}"


def _check_none_empty(
    definition: ModelDefinition,
    how: RecordInput,
    records: Sequence[Record],
    parts: Sequence[Any],
    mode: Mode,
) -> None:
    """Check that the labels and sample weights that an input function made are not empty.

    Args:
        definition: The model definition that the function belongs to.
        how: The input function.
        records: The records that it got.
        parts: Features, labels and sample weights that it returned.
        mode: Purpose of the batch.

    Raises:
        DefinitionError: One of them is empty, though there are records.
    """
    for name, part in zip(("labels", "sample weights"), parts[1:], strict=False):
        if part is None or not leaves(part) or not _are_of_no_record(part):
            continue
        of_evaluation = mode is Mode.EVALUATION and name == "labels"
        in_schema = "" if how.schema is None else " Only fields in data_schema() are read."
        raise DefinitionError(
            f"{definition.where('input')}: the {name} that the input function made from "
            f"{counted(len(records), 'record')} are empty. Does it look for a field that the "
            f"records do not have? They have {listed(records[0])}.{in_schema}"
            + " An evaluation needs labels; use predict for data without them."
            * of_evaluation
        )


def _are_of_no_record(labels: Any) -> bool:
    try:
        return all(np.shape(each)[:1] == (0,) for each in leaves(labels))
    except ValueError:
        # A sequence of no one shape, which `batch_of` refuses.
        return False


def by_class(definition: ModelDefinition, batch: Batch, mode: Mode) -> Batch:
    """Return a training batch with the user's class weights applied to its sample weights.

    Without class weights, and in other modes, the batch is returned unchanged.
    """
    if mode is not Mode.TRAINING or definition.class_weight is None:
        return batch
    weights = definition.class_weight()
    return batch if weights is None else with_class_weights(batch, weights, str(definition.origin))
