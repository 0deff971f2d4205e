"""Names that a module uses and never binds, found without running it.

A missing import is a `NameError`, and for names used in functions it comes when they are called,
deep in the first epoch. The compiler knows which names a module looks up among its globals, so
its instructions are read rather than the text: scopes, comprehensions, class bodies and
annotations that are never evaluated are then as Python has them.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import dis
import importlib.util
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import CodeType

from elasticdl.dialects.source_lines import shown_path, top_level_names
from elasticdl.sessions.checks.finding import Finding, error, warning
from elasticdl.syntax import parse

_COMPONENTS = ("AugmentorBase", "DataLoaderBase", "EvaluatorBase", "ModelBuilderBase")
_IMPORTS: Mapping[str, str] = {
    **{name: f"from abstractions import {name}" for name in (*_COMPONENTS, "PreprocessorBase")},
    "ConfigStruct": "from abstractions.utils import ConfigStruct",
    "F": "import torch.nn.functional as F",
    "Image": "from PIL import Image",
    "Path": "from pathlib import Path",
    "defaultdict": "from collections import defaultdict",
    "dataclass": "from dataclasses import dataclass",
    "imread": "from skimage.io import imread",
    "layers": "from tensorflow.keras import layers",
    "nn": "from torch import nn",
    "np": "import numpy as np",
    "partial": "from functools import partial",
    "pd": "import pandas as pd",
    "plt": "import matplotlib.pyplot as plt",
    "skimage": "import skimage.io",
    "sk": "import skimage as sk",
    "tf": "import tensorflow as tf",
    "tfk": "import tensorflow.keras as tfk",
}
_OF_EVERY_MODULE = frozenset(
    (*vars(builtins), "__annotations__", "__builtins__", "__cached__", "__file__", "__path__")
)
_BINDS = {"STORE_NAME", "STORE_GLOBAL"}
_LOOKS_UP = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF"}


@dataclass(frozen=True)
class Module:
    """A Python file of a project.

    Attributes:
        file: Where it is.
        text: What it says.
    """

    file: Path
    text: bytes = field(repr=False)

    @property
    def place(self) -> str:
        """The file as a person would write it."""
        return shown_path(self.file)

    @cached_property
    def imports(self) -> dict[str, int]:
        """Dotted names of the modules it cannot do without -> line."""
        found: dict[str, int] = {}
        for node in _unguarded(self._tree.body):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found.setdefault(alias.name, node.lineno)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.setdefault(node.module, node.lineno)
        return found

    @cached_property
    def unbound(self) -> dict[str, int]:
        """Names it uses and never binds -> line of the first use."""
        code = compile(self.text, str(self.file), "exec", dont_inherit=True)
        bound: set[str] = set(_OF_EVERY_MODULE)
        used: list[tuple[int, str]] = []
        for instruction, line, scope, inner in _instructions(code):
            if instruction.opname in _BINDS and (
                scope is code or instruction.opname == "STORE_GLOBAL"
            ):
                bound.add(str(instruction.argval))
            elif instruction.opname in _LOOKS_UP and instruction.argval not in inner:
                used.append((line, str(instruction.argval)))
            elif (
                "IMPORT_STAR" in instruction.opname
                or instruction.argrepr == "INTRINSIC_IMPORT_STAR"
            ):
                # It may bind anything.
                return {}
        found: dict[str, int] = {}
        for line, name in sorted(used):
            if name not in bound:
                found.setdefault(name, line)
        return found

    @cached_property
    def _tree(self) -> ast.Module:
        return parse(self.text)


def modules_of(source: Path) -> list[Module]:
    """Return the Python files of a folder, hidden ones left out."""
    return [
        Module(file, file.read_bytes())
        for file in sorted(source.rglob("*.py"))
        if file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(source).parts)
    ]


def look(source: Path, wanted: Collection[Path]) -> Iterator[Finding]:
    """Yield what is missing in the modules of a folder.

    Args:
        source: The folder, which will be first on `sys.path`.
        wanted: Files that will be imported; what is wrong with others is a warning.
    """
    modules = {module.file: module for module in modules_of(source)}
    needed = _reached(source, modules, wanted)
    for module in modules.values():
        made = error if module.file in needed else warning
        try:
            missing = [*module.imports.items()]
            unbound = module.unbound
        except (SyntaxError, ValueError) as problem:
            line = getattr(problem, "lineno", None) or 1
            yield made(
                f"this is not Python: {getattr(problem, 'msg', problem)}.",
                f"{module.place}:{line}",
                "Correct the line.",
            )
            continue
        for name, line in missing:
            if not can_be_imported(name, source):
                yield made(
                    f"{name.partition('.')[0]!r} is imported, and is neither installed nor a file "
                    f"of {shown_path(source)}.",
                    f"{module.place}:{line}",
                    "Install the package that has it, or correct the name.",
                )
        for name, line in unbound.items():
            yield made(
                f"the name {name!r} is used and never bound in this file: NameError.",
                f"{module.place}:{line}",
                _way_out(name, module, source, modules.values()),
            )


def lacks(file: Path, name: str, where: str) -> Iterator[Finding]:
    """Yield that a file does not define a name.

    Args:
        file: A Python file.
        name: What is looked for.
        where: Who names it.
    """
    there = top_level_names(file)
    if there and name not in there and "*" not in there:
        near = difflib.get_close_matches(name, there, n=1)
        yield error(
            f"{shown_path(file)} has no {name!r}; it defines "
            f"{', '.join(n for n, found in there.items() if not found.imported) or 'nothing'}.",
            where,
            f"Did you mean {near[0]!r}?" if near else "Name a class that is there.",
        )


def _way_out(name: str, module: Module, source: Path, modules: Collection[Module]) -> str:
    if name in _IMPORTS:
        return f"Add the line:  {_IMPORTS[name]}"
    own = top_level_names(module.file)
    near = [other for other in difflib.get_close_matches(name, own, n=1) if other != name]
    if near:
        return (
            f"Did you mean {near[0]!r} (line {own[near[0]].line})? Otherwise define or import it."
        )
    for other in modules:
        there = top_level_names(other.file).get(name)
        if other is not module and there is not None and not there.imported:
            dotted = ".".join(other.file.relative_to(source).with_suffix("").parts)
            return f"Add the line:  from {dotted} import {name}"
    if name in sys.stdlib_module_names or can_be_imported(name, source):
        return f"Add the line:  import {name}"
    return "Define it, or import it at the top of the file."


def _reached(source: Path, modules: Mapping[Path, Module], wanted: Collection[Path]) -> set[Path]:
    """Return the files that are imported when some are."""
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
    """Return whether the first part of a dotted name is a file of a folder, or installed."""
    top = name.partition(".")[0]
    if (source / top).is_dir() or (source / f"{top}.py").is_file() or top in sys.modules:
        return True
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def _unguarded(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements a module cannot be imported without: not those in a `try` or `if`."""
    for node in body:
        yield node
        if isinstance(node, (ast.With, ast.ClassDef)):
            yield from _unguarded(node.body)


def _instructions(
    code: CodeType, *, whole: CodeType | None = None
) -> Iterator[tuple[dis.Instruction, int, CodeType, frozenset[str]]]:
    """Yield the instructions of a module with their lines, scopes and what a class body binds."""
    line = code.co_firstlineno
    inner: frozenset[str] = frozenset()
    instructions = list(dis.get_instructions(code))
    if whole is not None:
        # In a class body; the module's own are known to who asks.
        inner = frozenset(str(i.argval) for i in instructions if i.opname == "STORE_NAME")
        inner |= {"__module__", "__qualname__"}
    for instruction in instructions:
        position = instruction.positions
        if position is not None and position.lineno is not None:
            line = position.lineno
        yield instruction, line, code, inner
    for constant in code.co_consts:
        # From Python 3.14 on, annotations are functions that are rarely called.
        if isinstance(constant, CodeType) and constant.co_name != "__annotate__":
            yield from _instructions(constant, whole=whole or code)
