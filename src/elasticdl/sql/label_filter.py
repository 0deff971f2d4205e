"""Filter that drops rows without a label, which training and evaluation cannot use.

Used by `training.py` and `evaluation.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from elasticdl.data.wording import counted, listed
from elasticdl.did_you_mean import did_you_mean
from elasticdl.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasticdl.sql.database_interface import RowSource


class LabelError(DataError):
    """No row of a query has a label, or a label is infinite."""


class Labelled:
    """Iterable of the batches of a query, without the rows whose label is NULL or NaN.

    Args:
        rows: The rows; they are read once.
        label: The column with the label.

    Attributes:
        num_without: Number of rows without a label so far.
        num_infinite: Number of rows with an infinite label so far.
    """

    def __init__(self, rows: RowSource, label: str) -> None:
        self._rows, self._label = rows, label
        self.num_without = self.num_infinite = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches, without the rows that have no label.

        Raises:
            UsageError: There is no such column.
            LabelError: There are rows but none of them has a label, or a label is infinite.
        """
        at = self._rows.schema.get_field_index(self._label)
        if at < 0:
            names = self._rows.schema.names
            raise UsageError(
                f"There is no column {self._label!r} to predict; the SELECT has "
                f"{listed(names)}{did_you_mean(self._label, names, is_label=True)}"
            )
        num_with = 0
        for batch in self._rows.batches:
            label = batch.column(at)
            if pa.types.is_floating(label.type):
                label = pc.if_else(pc.is_nan(label), None, label)
                self.num_infinite += pc.sum(pc.is_inf(label)).as_py() or 0
            num_with += len(label) - label.null_count
            if not label.null_count:
                yield batch
                continue
            self.num_without += label.null_count
            yield batch.filter(label.is_valid())
        if self.num_without and not num_with:
            raise LabelError(
                f"The column {self._label!r} has no value in any of the "
                f"{counted(self.num_without, 'row')} of the SELECT. Choose another one with LABEL."
            )

        self.check_finite()

    def check_finite(self) -> None:
        """Raise a `LabelError` if any label read so far is infinite."""
        if self.num_infinite:
            raise LabelError(
                f"The column {self._label!r} is infinite in {counted(self.num_infinite, 'row')}. "
                "Leave these rows out, or select NULL instead."
            )

    @property
    def note(self) -> str:
        """Message about the skipped rows; empty if there were none."""
        if not self.num_without:
            return ""
        return f"Left out: {counted(self.num_without, 'row')} without a value in {self._label!r}."
