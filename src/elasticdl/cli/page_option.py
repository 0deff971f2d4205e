"""The `--page` option: shows a training run in a browser while it runs."""

from __future__ import annotations

import contextlib
import os
import sys
from contextlib import AbstractContextManager

import click

from elasticdl.cli.printable import echo
from elasticdl.job import PAGE_PORT_VARIABLE, PAGE_TOKEN_VARIABLE

page_option = click.option(
    "--page/--no-page",
    "with_page",
    default=None,
    help="Show the training in a browser while it runs, and print the URL. On by default in a "
    "terminal. After the training, use elasticdl job page.",
)


def is_page_wanted(asked: bool | None, *, quiet: bool) -> bool:
    """Return whether to show the job page.

    Args:
        asked: Value of `--page`. None: show the page only in a terminal, and not if `quiet`.
        quiet: Whether the command prints nothing.
    """
    return not quiet and sys.stderr.isatty() if asked is None else asked


def page_of(output: str | None) -> AbstractContextManager[object]:
    """Return a context manager that serves the web page of a job in a process of its own.

    Args:
        output: Output of the job; with None, the context manager does nothing.
    """
    if output is None:
        return contextlib.nullcontext()
    from elasticdl.page.web_server import PageProcess  # noqa: PLC0415 - not for `--help`

    return PageProcess(output, _print_line)


def page_in_pod(output: str | None) -> AbstractContextManager[object] | None:
    """Return a context manager that serves a job's page from the pod that this process runs in.

    The user's browser reaches the page through a port-forward. Returns None if this process does
    not run in a pod, or if `output` is None.
    """
    token, port = os.environ.get(PAGE_TOKEN_VARIABLE), os.environ.get(PAGE_PORT_VARIABLE, "")
    if output is None or not token or not port.isdecimal():
        return None
    from elasticdl.page.web_server import InPod, PageProcess  # noqa: PLC0415 - not for `--help`

    return PageProcess(output, _print_line, InPod(int(port), token))


def _print_line(line: str) -> None:
    echo(line, err=True)
