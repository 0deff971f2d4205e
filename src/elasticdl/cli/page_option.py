"""The option that shows a training in a browser while it runs."""

from __future__ import annotations

import contextlib
import sys
from contextlib import AbstractContextManager

import click

from elasticdl.cli.printable import echo

page_option = click.option(
    "--page/--no-page",
    "with_page",
    default=None,
    help="Show the training in a browser while it runs, and print the URL. On a terminal it is "
    "on; afterwards: elasticdl job page.",
)


def is_page_wanted(asked: bool | None, *, quiet: bool) -> bool:
    """Return whether a training is to be shown: as asked, else where a person looks on."""
    return not quiet and sys.stderr.isatty() if asked is None else asked


def page_of(output: str | None) -> AbstractContextManager[object]:
    """Return the page of a training, shown within the `with` block; None has none."""
    if output is None:
        return contextlib.nullcontext()
    from elasticdl.page.serving import PageProcess  # noqa: PLC0415 - not for `--help`

    return PageProcess(output, lambda line: echo(line, err=True))
