"""Thread-safe parsing of Python source: one thread at a time.

CPython 3.11 and 3.12 keep the depth of the tree that they build in one counter for all threads.
If another thread builds a tree at the same time (possible in a finalizer that the garbage collector
calls), both fail with "SystemError: AST constructor recursion depth mismatch"
(https://github.com/python/cpython/issues/106905). So all our code parses through this module.

Callers: `dialects/source_lines.py`, `sessions/checks/names.py`, `sql/check.py`, `zoo/catalogue.py`,
`zoo/params.py`.
"""

from __future__ import annotations

import ast
import threading
from typing import Any

# Reentrant, because the collector may run code that parses while this thread does.
_LOCK = threading.RLock()


def parse(source: str | bytes) -> ast.Module:
    """Parse the source of a Python file into its syntax tree.

    Raises:
        SyntaxError: The source is not Python.
        ValueError: The source contains a null byte, or nests too deeply.
    """
    with _LOCK:
        return ast.parse(source)


def parse_expression(source: str) -> ast.Expression:
    """Parse one Python expression into its syntax tree; raises as `parse` does."""
    with _LOCK:
        return ast.parse(source, mode="eval")


def literal_eval(source: str) -> Any:
    """Evaluate a Python literal, as `ast.literal_eval` does.

    Raises:
        SyntaxError: The source is not Python.
        ValueError: The source is not a literal.
    """
    with _LOCK:
        return ast.literal_eval(source)
