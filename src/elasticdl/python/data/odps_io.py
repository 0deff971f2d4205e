"""Exists only for old imports: model files of the published zoo name this writer.

They use it only where the environment names a MaxCompute table, which ElasticDL does not write
to.
"""

from __future__ import annotations

from typing import Any

from elasticdl.errors import UsageError


class ODPSWriter:
    """Stands for a writer to MaxCompute tables; making one is refused."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        raise UsageError(
            "Writing predictions to a MaxCompute table is not supported. Unset the MAXCOMPUTE_* "
            "variables, or write the file that --output names to the table afterwards."
        )
