"""Completes the features of a COLUMN clause with values from the data, such as vocabularies.

Statements without a COLUMN clause have the default features of `zoo/prebuilt/derived.py`.

Used by `training.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elasticdl.data.column_summary import is_whole
from elasticdl.zoo.prebuilt.derived import feature_of, vocabulary_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elasticdl.data.column_summary import ColumnSummary

# Kinds that need a marker for missing values; a category has an id for them, a list is empty.
_MARKED_KINDS = ("number", "time")


def resolve(feature: Mapping[str, Any], columns: Sequence[ColumnSummary]) -> dict[str, Any]:
    """Complete a feature of a COLUMN clause with values from its column, such as a vocabulary.

    Args:
        feature: One of the features that `columns.features_of` returned. It may be incomplete, for
            example lack a vocabulary.
        columns: The columns of the table, with summaries of their values.

    Returns:
        The feature as the prebuilt table models expect it.

    Raises:
        KeyError: The table has no such column.
    """
    resolved = dict(feature)
    inner = resolved.get("of")
    if inner is not None:
        resolved["of"] = (
            [resolve(each, columns) for each in inner]
            if isinstance(inner, list)
            else resolve(inner, columns)
        )
        return resolved
    column = next(each for each in columns if each.name == resolved["column"])
    derive_from = resolved.pop("derive", None)
    if derive_from is not None and "kind" not in resolved:
        return feature_of(column)
    if derive_from is not None:
        resolved |= vocabulary_of(column, **derive_from)
    if {"buckets", "vocabulary"} & resolved.keys() and is_whole(column.type):
        # Otherwise the text form of a number would depend on the file that holds it. As integers,
        # values beyond 2^53 stay exact.
        resolved["dtype"] = "int64"
    is_marked = column.num_missing > 0 and resolved["kind"] in _MARKED_KINDS
    return resolved | ({"nullable": True} if is_marked else {})
