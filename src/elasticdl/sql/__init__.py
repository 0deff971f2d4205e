"""SQL front end: statements such as `SELECT ... TO TRAIN ...` train models and predict with them.

In a notebook, `%load_ext elasticdl.sql` adds the magics of `notebook.py`.
"""

from __future__ import annotations

from typing import Any


def load_ipython_extension(ipython: Any) -> None:
    """Add `%sql` and `%%sql`; called by `%load_ext elasticdl.sql`.

    Args:
        ipython: The notebook's InteractiveShell.
    """
    from elasticdl.sql.notebook import SqlMagics  # noqa: PLC0415 - IPython, in notebooks only

    ipython.register_magics(SqlMagics)
