"""Catalogue of the prebuilt models, read from their source without running it.

Running the files would import Keras, which takes seconds; a listing must be immediate. Therefore
the files are parsed: a model is a class that descends from `keras.Model`, possibly through another
class of the zoo, or a file that defines `model` or `custom_model`. A model's description is the
first line of its docstring and the paragraph of the file's docstring that begins with "Data:".

Callers: `cli/zoo.py`, `engines/table_params.py`.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from elasticdl.syntax import parse
from elasticdl.zoo.folder import PREBUILT

STARTER = Path(__file__).parent / "starter" / "my_model.py"


@dataclass(frozen=True)
class CatalogueParam:
    """A param of a model, which `--params` can set.

    Attributes:
        name: Its name.
        default: Its default as Python source; None if it is required.
    """

    name: str
    default: str | None

    def __str__(self) -> str:
        """Return `name=default`."""
        return self.name if self.default is None else f"{self.name}={self.default}"


@dataclass(frozen=True)
class CatalogueEntry:
    """A prebuilt model, as `elasticdl zoo` describes it.

    Attributes:
        name: Its name for `--model_def`.
        file: The file that defines it.
        line: Line of its definition.
        summary: Description of the model in one sentence.
        data: Content of its records in one sentence.
        doc: The docstrings of its file and of the model itself.
        params: Its params, in order.
    """

    name: str
    file: Path
    line: int
    summary: str
    data: str
    doc: str
    params: tuple[CatalogueParam, ...]


def entries(zoo: Path = PREBUILT) -> list[CatalogueEntry]:
    """Return the models of a folder of model files, sorted by name."""
    modules = {
        path: parse(path.read_text(encoding="utf-8")) for path in zoo.glob("*.py") if path.is_file()
    }
    classes = {
        f"{path.stem}.{node.name}": node
        for path, module in modules.items()
        for node in module.body
        if isinstance(node, ast.ClassDef)
    }
    found = []
    for path, module in modules.items():
        about = ast.get_docstring(module) or ""
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                name = f"{path.stem}.{node.name}"
                if _is_model(name, classes):
                    found.append(_entry(name, path, node, about, _constructor_params(node)))
            elif _makes_model(node):
                found.append(_entry(path.stem, path, node, about, _module_params(module)))
    return sorted(found, key=lambda entry: entry.name)


def _makes_model(node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name == "custom_model"
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "model"


def _is_model(name: str, classes: dict[str, ast.ClassDef]) -> bool:
    if name == "keras.Model":
        return True
    stem = name.split(".", maxsplit=1)[0]
    bases = [ast.unparse(base) for base in classes[name].bases] if name in classes else []
    return any(_is_model(base if "." in base else f"{stem}.{base}", classes) for base in bases)


def _entry(
    name: str, path: Path, node: ast.stmt, about: str, params: tuple[CatalogueParam, ...]
) -> CatalogueEntry:
    own = ast.get_docstring(node) or "" if isinstance(node, ast.ClassDef) else ""
    paragraphs = [" ".join(paragraph.split()) for paragraph in about.split("\n\n")]
    data = next((text for text in paragraphs if text.startswith("Data: ")), "Data: not described.")
    # The first sentence; "0 .. 255" does not end one.
    data = re.split(r"(?<=[^. ])\. ", data.removeprefix("Data: "))[0].removesuffix(".")
    return CatalogueEntry(
        name=name,
        file=path,
        line=node.lineno,
        summary=(own or about).split("\n")[0],
        data=data,
        doc="\n\n".join(text for text in (about, own) if text),
        params=params,
    )


def _constructor_params(node: ast.ClassDef) -> tuple[CatalogueParam, ...]:
    constructors = [
        child
        for child in node.body
        if isinstance(child, ast.FunctionDef) and child.name == "__init__"
    ]
    return _params(constructors[0])[1:] if constructors else ()


def _module_params(module: ast.Module) -> tuple[CatalogueParam, ...]:
    """Return the params of a model file: all arguments of its functions that have defaults."""
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    params = [param for function in functions for param in _params(function) if param.default]
    return tuple(dict.fromkeys(params))


def _params(function: ast.FunctionDef) -> tuple[CatalogueParam, ...]:
    positional = [*function.args.posonlyargs, *function.args.args]
    required = len(positional) - len(function.args.defaults)
    defaults = [*[None] * required, *function.args.defaults, *function.args.kw_defaults]
    arguments = [*positional, *function.args.kwonlyargs]
    return tuple(
        CatalogueParam(argument.arg, None if default is None else ast.unparse(default))
        for argument, default in zip(arguments, defaults, strict=True)
    )
