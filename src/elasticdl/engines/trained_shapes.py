"""Explains that a trained model cannot take records whose fields have other shapes than before.

The model's own error gives advice for writing a model. In evaluation and prediction, the model is
fixed, and the data can be changed.

Callers: `inference.py`, `loaded_model.py`, `elastic/inference_worker.py`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from elasticdl.data.schema import Field, Schema
from elasticdl.errors import (
    CheckpointMismatchError,
    DataError,
    DefinitionError,
    UserCodeError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasticdl.data.batch import Record
    from elasticdl.engines.inference import OpenedModel


@contextlib.contextmanager
def explained_shapes(opened: OpenedModel) -> Iterator[None]:
    """Context manager that explains an error of the model if fields have other shapes.

    Raises:
        DataError: The block raised an error of user code, or the weights do not fit, and the shape
            of a field differs from its shape in the first record of the training data.
    """
    try:
        yield
    except (CheckpointMismatchError, DefinitionError, UserCodeError) as error:
        json = opened.trained.description.record_fields_json
        before = Schema.from_json(json).fields if json else ()
        record = opened.source.read_records(0, 1, None)[0] if before else {}
        differing = [
            field
            for field in before
            if field.name in record and np.shape(record[field.name]) != tuple(field.shape)
        ]
        if not differing:
            raise
        # Indented lines are the user's code, and advice for writing a model.
        lines = [line for line in str(error).splitlines() if line[:2] != "  "]
        shapes = "; ".join(
            f"{field.name!r} has the shape {[*np.shape(record[field.name])]}, and "
            f"{[*field.shape]} in the training data"
            for field in differing
        )
        raise DataError(
            f"{opened.job.data}: {opened.job.trained_model} cannot take these records: {shapes}. "
            f"{_advice(differing[0], record, opened.source.num_records)}\n  " + "\n  ".join(lines)
        ) from error


def _advice(field: Field, record: Record, num_records: int) -> str:
    shape = np.shape(record[field.name])
    # The numbers of a vector are records of the shape [1].
    if tuple(field.shape) in {(num_records, *shape), (num_records,) * (shape == (1,))}:
        return f"One example needs a first axis of size 1, such as {field.name}[None]."
    return (
        "Convert the data as the training data was converted, or train a model on data of this "
        "shape."
    )
