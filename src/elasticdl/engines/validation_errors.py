"""Says in an error of user code that it was raised in validation, and on which records.

Callers: `loop.py`, `training_context.py`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from elasticdl.errors import UserCodeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasticdl.data.batch import Batch


@contextlib.contextmanager
def in_validation(batch: Batch) -> Iterator[None]:
    """Context manager for the evaluation of a batch of the validation data.

    Raises:
        UserCodeError: The same error, with another line.
    """
    try:
        yield
    except UserCodeError as error:
        records = "" if batch.where is None else f": {batch.where()}"
        error.args = (f"{error}\n  This happened in validation{records}.",)
        raise
