"""Console of the package Rich, with which the commands print tables."""

from __future__ import annotations

from typing import NoReturn

from rich.console import Console


class TableConsole(Console):
    """A Rich console that may print into a pipe closed early, as in `elasticdl zoo list | head`."""

    def on_broken_pipe(self) -> NoReturn:
        """Raise `BrokenPipeError`, so that `main` exits with code 0; Rich would exit with 1."""
        raise BrokenPipeError
