"""Lets model files keep an old import: some import `ODPSWriter` from here.

They create a writer only if environment variables name a MaxCompute table. ElasticDL does not write
to such tables.
"""

from __future__ import annotations

from typing import Any

from elasticdl.errors import UsageError


class ODPSWriter:
    """Placeholder for a writer to MaxCompute tables, so that old imports work.

    Raises:
        UsageError: Always, when it is created: such tables are not supported.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        raise UsageError(
            "Writing predictions to a MaxCompute table is not supported. Unset the MAXCOMPUTE_* "
            "variables, or write the file that --output names to the table afterwards."
        )
