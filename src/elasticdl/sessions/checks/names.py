"""Rules of the session check that find missing names and imports without running the modules.

Python looks up a name in a function only when the function is called. So without the check, a
missing import may raise its `NameError` deep in the first epoch. pyflakes finds such names.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from elasticdl.dialects.source_lines import shown_path, top_level_names
from elasticdl.errors import MissingExtraError
from elasticdl.sessions.checks.finding import CheckFinding, error, warning
from elasticdl.syntax import parse

try:
    from pyflakes.checker import Checker
    from pyflakes.messages import UndefinedName
except ModuleNotFoundError as absent:
    raise MissingExtraError("pyflakes", "sessions", "`elasticdl session check`") from absent


@dataclass(frozen=True)
class Module:
    """A Python file of a project.

    Attributes:
        file: Path of the file.
        text: Content of the file.
    """

    file: Path
    text: bytes = field(repr=False)

    @property
    def place(self) -> str:
        """Path of the file, as shown in messages."""
        return shown_path(self.file)

    @cached_property
    def imports(self) -> dict[str, int]:
        """Name of each module that importing the file imports, unless an error is caught -> line.

        Imports within `try`, `if` or a function are not included, because they may be optional.
        """
        found: dict[str, int] = {}
        for node in _unguarded(self._tree.body):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found.setdefault(alias.name, node.lineno)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.setdefault(node.module, node.lineno)
        return found

    @cached_property
    def undefined(self) -> dict[str, int]:
        """Name that the file uses but never defines -> line of its first use."""
        # Reports code that the parser accepts but the compiler does not, such as a stray `return`.
        compile(self._tree, str(self.file), "exec", dont_inherit=True)
        uses = [
            (message.lineno, message.message_args[0])
            for message in _EvaluatedNames(self._tree, str(self.file), withDoctest=False).messages
            if isinstance(message, UndefinedName)
        ]
        found: dict[str, int] = {}
        for line, name in sorted(uses):
            found.setdefault(name, line)
        return found

    @cached_property
    def _tree(self) -> ast.Module:
        return parse(self.text)


class _EvaluatedNames(Checker):  # type: ignore[misc]  # pyflakes has no types
    """pyflakes' checker, but it skips annotations that an import does not evaluate."""

    def handleStringAnnotation(self, *args: object) -> None:  # noqa: N802 - pyflakes' name
        """Skip an annotation that is a string."""

    def handle_annotation_always_deferred(self, *args: object) -> None:
        """Skip an annotation that is evaluated only on request."""


def modules_of(source: Path) -> list[Module]:
    """Return the Python files of a folder, except for hidden ones."""
    return [
        Module(file, file.read_bytes())
        for file in sorted(source.rglob("*.py"))
        if file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(source).parts)
    ]


def check(source: Path, wanted: Collection[Path]) -> Iterator[CheckFinding]:
    """Yield findings about the Python files of a folder, without running them.

    A finding is a name that a file uses but never defines, a module that cannot be imported, or
    invalid Python.

    Args:
        source: The folder, which will be first on `sys.path`.
        wanted: Files that training will import. Problems in these, and in files that they import,
            are errors; those in other files are only warnings.
    """
    modules = {module.file: module for module in modules_of(source)}
    needed = _reached(source, modules, wanted)
    for module in modules.values():
        made = error if module.file in needed else warning
        try:
            missing = [*module.imports.items()]
            undefined = module.undefined
        except (SyntaxError, ValueError) as problem:
            line = getattr(problem, "lineno", None) or 1
            yield made(
                f"this is not valid Python: {getattr(problem, 'msg', problem)}.",
                f"{module.place}:{line}",
                "Correct the line.",
            )
            continue
        for name, line in missing:
            if not can_be_imported(name, source):
                yield made(
                    f"{name.partition('.')[0]!r} is imported, but is neither installed nor a file "
                    f"of {shown_path(source)}.",
                    f"{module.place}:{line}",
                    "Install the package that has it, or correct the name.",
                )
        for name, line in undefined.items():
            found = made(
                f"the name {name!r} is used but never defined in this file, which would raise a "
                "NameError.",
                f"{module.place}:{line}",
                "Define it, or import it at the top of the file.",
            )
            yield replace(found, undefined_name=name)


def lacks(file: Path, name: str, where: str) -> Iterator[CheckFinding]:
    """Yield a finding if a file does not define a name.

    Args:
        file: A Python file.
        name: The name to look for.
        where: The location that uses the name.
    """
    there = top_level_names(file)
    if there and name not in there and "*" not in there:
        near = difflib.get_close_matches(name, there, n=1)
        yield error(
            f"{shown_path(file)} has no {name!r}; it defines "
            f"{', '.join(n for n, found in there.items() if not found.imported) or 'nothing'}.",
            where,
            f"Did you mean {near[0]!r}?" if near else "Use an existing class.",
        )


def _reached(source: Path, modules: Mapping[Path, Module], wanted: Collection[Path]) -> set[Path]:
    """Return the `wanted` files and all the project's files that they import, even indirectly."""
    reached: set[Path] = set()
    waiting = [file for file in wanted if file in modules]
    while waiting:
        file = waiting.pop()
        if file in reached:
            continue
        reached.add(file)
        try:
            names = modules[file].imports
        except (SyntaxError, ValueError):
            continue
        for name in names:
            stem = source.joinpath(*name.split("."))
            waiting += [f for f in (stem.with_suffix(".py"), stem / "__init__.py") if f in modules]
    return reached


def can_be_imported(name: str, source: Path) -> bool:
    """Return whether the first part of a dotted name is a module in `source` or is installed."""
    top = name.partition(".")[0]
    if (source / top).is_dir() or (source / f"{top}.py").is_file() or top in sys.modules:
        return True
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def _unguarded(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that importing a module always executes.

    Those in the body of a class or a `with` are included, those in `try`, `if`, loops and functions
    are not.
    """
    for node in body:
        yield node
        if isinstance(node, (ast.With, ast.ClassDef)):
            yield from _unguarded(node.body)
