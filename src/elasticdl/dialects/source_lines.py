"""Finds the names that a user's file defines, and their lines, without executing the file.

Errors contain `file:line`, and a zoo's folder is searched for a name before its files are imported.
For a file that is not valid Python, no names are found; importing it reports the error.

Callers: `model_code.py`, `alternative_names.py`, `unread_names.py`, `other_trainers.py`,
`framework_seeds.py`, `lightning_module.py`, `zoo/folder.py`, `zoo/code_files.py` and
`zoo/outside.py`.
"""

from __future__ import annotations

import ast
import fnmatch
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl import tracebacks, user_files
from elasticdl.syntax import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import TypeGuard

shown_path = tracebacks.shown_path


@dataclass(frozen=True)
class TopLevelName:
    """A name at the top level of a file.

    Attributes:
        line: Line of its first assignment or definition.
        imported: Whether it is imported from another file.
    """

    line: int
    imported: bool


def top_level_names(file: Path) -> Mapping[str, TopLevelName]:
    """Return the top-level names that a file defines or imports; `*` for `from x import *`."""
    tree = _parsed(file)
    names: dict[str, TopLevelName] = {}
    if tree is not None:
        for name, line, imported in _names(tree.body):
            names.setdefault(name, TopLevelName(line, imported))
    return names


def names_used(file: Path) -> frozenset[str]:
    """Return the names that a file's code looks up anywhere, as variables or attributes."""
    tree = _parsed(file)
    nodes = () if tree is None else ast.walk(tree)
    return frozenset(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in nodes
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
    )


def variables_used(file: Path) -> frozenset[str]:
    """Return the names that a file's code looks up as variables; `b` of `a.b` is not among them."""
    tree = _parsed(file)
    nodes = () if tree is None else ast.walk(tree)
    return frozenset(
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )


def names_imported(file: Path) -> frozenset[str]:
    """Return the parts of all names in a file's import statements: `a` and `b` of `import a.b`."""
    tree = _parsed(file)
    statements = [
        node
        for node in (() if tree is None else ast.walk(tree))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    dotted = [getattr(node, "module", None) or "" for node in statements]
    dotted += [alias.name for node in statements for alias in node.names]
    return frozenset(part for name in dotted for part in name.split("."))


def modules_imported(file: Path, package: str = "") -> frozenset[str]:
    """Return the modules that a file imports and needs: `a.b` of `import a.b`.

    `from a import b` gives `a.b`, whether `b` is a module or another name. Left out are imports
    that do not run when the file is imported by others, such as those below `if TYPE_CHECKING:`,
    and those whose failure the file catches. Imports in functions are included.

    Args:
        file: A Python file.
        package: The package that the file is in; "" leaves out relative imports.
    """
    pending: list[ast.AST] = [tree] if (tree := _parsed(file)) is not None else []
    found: set[str] = set()
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: 1 - node.level or None] if node.level else []
            if not node.level or any(parts):
                parts += [node.module] if node.module else []
                found |= {".".join([*parts, alias.name]) for alias in node.names}
        elif isinstance(node, ast.If):
            for part in _parts_on_import(node):
                pending += getattr(node, part, [])
        else:
            skipped = [*node.body, *getattr(node, "orelse", [])] if _may_lack_imports(node) else []
            pending += [child for child in ast.iter_child_nodes(node) if child not in skipped]
    return frozenset(found)


_IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


def _may_lack_imports(node: ast.AST) -> TypeGuard[ast.Try | ast.With]:
    """Return whether a file can be imported although an import in this statement's body fails."""
    caught: list[ast.expr | None] = []
    if isinstance(node, ast.Try):
        caught = [
            handler.type
            for handler in node.handlers
            if not any(isinstance(inner, ast.Raise) for inner in handler.body)
        ]
    elif isinstance(node, ast.With):
        calls = [item.context_expr for item in node.items]
        caught = [
            name
            for call in calls
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("suppress")
            for name in call.args
        ]
    names = {
        "Exception" if error is None else getattr(error, "id", "")
        for each in caught
        for error in (each.elts if isinstance(each, ast.Tuple) else [each])
    }
    return not names.isdisjoint(_IMPORT_ERRORS)


def file_names_read(file: Path) -> Callable[[str], bool]:
    """Return a function (name) -> whether a Python file may read a data file or folder so named.

    Any string in the code may name one or several: `"vocabulary.csv"`, `"words/*.txt"`,
    `f"{language}.csv"`, `".npy"`. A string that is only passed to a call that writes a file, such
    as `CSVLogger`, does not count.
    """
    tree = _parsed(file)
    if tree is None:
        return lambda _: False
    written = _written(tree)
    exact: set[str] = set()
    patterns: set[str] = set()
    for node in ast.walk(tree):
        if node in written:
            continue
        text = _pattern(node)
        for part in text.split("/"):
            if "*" not in part and not part.startswith("."):
                exact.add(part)
            elif any(map(str.isalnum, part)):
                patterns.add(part if "*" in part else f"*{part}")
    is_matched = re.compile("|".join(map(fnmatch.translate, patterns)) or "(?!)").match
    return lambda name: name in exact or is_matched(name) is not None


def _pattern(node: ast.AST) -> str:
    """Return the text of a string, with `*` for inserted values (`f"{x}.csv"`); else ""."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_pattern, node.values))
    if isinstance(node, ast.FormattedValue):
        return "*"
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%\w+|\{\w*\}", "*", node.value)
    return ""


# Functions, methods and classes to which the name of a file that they write is passed.
_WRITERS = frozenset(
    {
        *("CSVLogger", "ModelCheckpoint", "BackupAndRestore", "TensorBoard", "FileHandler"),
        *("to_csv", "to_parquet", "to_json", "to_excel", "savefig", "imsave", "savez", "savetxt"),
        *("save", "save_weights", "save_model", "write_text", "write_bytes"),
    }
)


def _written(tree: ast.AST) -> set[ast.AST]:
    """Return syntax nodes in which strings name only files that the code writes, never reads.

    These are the nodes of calls that write a file, and of values that are assigned to variables
    which only such calls use.
    """
    inside = {
        node
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and _writes(call)
        for node in ast.walk(call)
    }
    loaded = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    ]
    read = {node.id for node in loaded if node not in inside}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and all(
            isinstance(target, ast.Name) and target.id not in read for target in node.targets
        ):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
            if names <= {each.id for each in loaded}:
                inside |= set(ast.walk(node.value))
    return inside


def _writes(call: ast.Call) -> bool:
    name = getattr(call.func, "id", None) or getattr(call.func, "attr", None)
    if name != "open":
        return name in _WRITERS
    modes = [*call.args[isinstance(call.func, ast.Name) :], *(k.value for k in call.keywords)]
    return any(
        isinstance(mode, ast.Constant) and str(mode.value).strip("bt+") in {"w", "a", "x"}
        for mode in modes
    )


def calls_of(file: Path, name: str) -> list[ast.Call]:
    """Return a file's calls of a function or class of this name, as `name()` or `module.name()`."""
    tree = _parsed(file)
    nodes = () if tree is None else ast.walk(tree)
    return [
        node
        for node in nodes
        if isinstance(node, ast.Call)
        and name in (getattr(node.func, "id", None), getattr(node.func, "attr", None))
    ]


def calls_on_import(file: Path) -> list[tuple[str, ast.Call]]:
    """Return the calls that a file makes when it is imported, with the full name of each function.

    `tf.random.set_seed(1)` after `import tensorflow as tf` is `tensorflow.random.set_seed`. Calls
    in functions, lambdas, classes and below `if __name__ == "__main__":` are left out.
    """
    tree = _parsed(file)
    statements = [] if tree is None else list(_on_import(tree.body))
    full_names = {
        alias.asname or alias.name: _prefix(node) + alias.name
        for node in statements
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    calls = [
        call
        for node in statements
        if isinstance(node, (ast.Expr, ast.Assign, ast.AnnAssign))
        for call in _calls_in(node)
    ]
    names = [ast.unparse(call.func).partition(".") for call in calls]
    return [
        (full_names.get(first, first) + dot + rest, call)
        for (first, dot, rest), call in zip(names, calls, strict=True)
    ]


def _prefix(node: ast.Import | ast.ImportFrom) -> str:
    """Return what precedes a name in an import, such as `keras.`, or `..keras.` in a package."""
    if isinstance(node, ast.Import):
        return ""
    return "." * node.level + (f"{node.module}." if node.module else "")


def _calls_in(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls made when a statement is evaluated, excluding those in lambda bodies."""
    if isinstance(node, ast.Call):
        yield node
    for child in ast.iter_child_nodes(node.args if isinstance(node, ast.Lambda) else node):
        yield from _calls_in(child)


def _on_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements executed on import, also those within `if`, `try`, `with` and loops."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        yield node
        for inner in _parts_on_import(node):
            yield from _on_import(getattr(node, inner, []))
        for handler in getattr(node, "handlers", []):
            yield from _on_import(handler.body)


def _parts_on_import(node: ast.stmt) -> tuple[str, ...]:
    """Return the names of a statement's blocks, without those that an import does not execute.

    These are the blocks that only a script or a type checker executes.
    """
    test = ast.unparse(node.test) if isinstance(node, ast.If) else ""
    if "__main__" in test:
        return ("body",) if "!=" in test else ("orelse",)
    if "TYPE_CHECKING" in test:
        return ("body",) if test.startswith("not ") else ("orelse",)
    return ("body", "orelse", "finalbody")


def assigned_line(file: Path, name: str, first: int) -> int:
    """Return the line that first assigns to a variable or an attribute of this name.

    Args:
        file: A Python file.
        name: Name of the variable or the attribute.
        first: Line from which to search; returned if nothing is found.
    """
    tree = _parsed(file)
    nodes = () if tree is None else ast.walk(tree)
    lines = [
        node.lineno
        for node in nodes
        if isinstance(node, (ast.Name, ast.Attribute))
        and isinstance(node.ctx, ast.Store)
        and name == getattr(node, "id", getattr(node, "attr", None))
    ]
    return min((line for line in lines if line >= first), default=first)


def definition_line(file: str, name: str, near: int = 0) -> int:
    """Return the line that defines a name; 1 if none is found.

    Args:
        file: A Python file.
        name: A function, a class or a variable.
        near: First line of the function according to the interpreter, which is that of its first
            decorator. 0: search the top level only.
    """
    tree = _parsed(Path(file))
    if tree is None:
        return near or 1
    if near:
        for node in ast.walk(tree):
            if (
                isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                and min([node.lineno, *(item.lineno for item in node.decorator_list)]) == near
            ):
                return node.lineno
        return near
    return next((line for found, line, _ in _names(tree.body) if found == name), 1)


def _parsed(file: Path) -> ast.Module | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return _parse(file, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=256)
def _parse(file: Path, mtime_ns: int, size_bytes: int) -> ast.Module | None:
    del mtime_ns, size_bytes  # these only invalidate the cached answer
    try:
        return parse(user_files.read_bytes(file, user_files.MAX_TEXT_BYTES))
    except (OSError, SyntaxError, ValueError):
        return None


def _names(body: list[ast.stmt]) -> Iterator[tuple[str, int, bool]]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node.lineno, False
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from ((name, node.lineno, False) for name in _targets(target))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from ((name, node.lineno, False) for name in _targets(node.target))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield (alias.asname or alias.name).partition(".")[0], node.lineno, True
        else:
            # `if`, `try`, `with` and loops hold statements of the same level.
            for inner in ("body", "orelse", "finalbody"):
                yield from _names(getattr(node, inner, []))
            for handler in getattr(node, "handlers", []):
                yield from _names(handler.body)


def _targets(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            yield from _targets(item)
