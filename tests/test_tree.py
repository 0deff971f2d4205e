"""The tree is the architecture: these rules hold for every file of it, also for the next one."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import json
import re
from pathlib import Path

import pytest

from elasticdl import errors

SOURCE = Path(__file__).parent.parent / "src" / "elasticdl"
FILES = sorted(path for path in SOURCE.rglob("*.py") if not path.name.endswith("_pb2.py"))
FRAMEWORKS = (
    "flwr",
    "keras",
    "mlflow",
    "pandas",
    "ray",
    "sklearn",
    "tensorflow",
    "tf_keras",
    "torch",
)
# They say nothing about what is inside, so that anything ends up there.
EMPTY_NAMES = {"utils", "util", "common", "base", "manager", "helper", "helpers", "handler"}


def named(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("path", FILES, ids=named)
def test_every_file_has_a_docstring(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_no_module_has_a_meaningless_name() -> None:
    # elasticdl.python holds import paths that existing model files use.
    places = [path.relative_to(SOURCE).with_suffix("") for path in FILES]
    words = {str(place): set(place.parts) for place in places if place.parts[0] != "python"}

    assert {place for place, parts in words.items() if parts & EMPTY_NAMES} == set()


def test_temporary_files_are_created_where_the_next_run_removes_them() -> None:
    """A killed process removes nothing; `scratch.py` finds its folder later."""
    makers = {"mkdtemp", "mkstemp", "TemporaryDirectory", "NamedTemporaryFile"}
    # A process that is forked here has a temporary directory of its own within the server's folder.
    without = {"scratch.py", "engines/elastic/worker.py"}
    loose = [
        f"{named(path)}:{call.lineno}"
        for path in FILES
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and getattr(call.func, "attr", getattr(call.func, "id", "")) in makers
        and not any(keyword.arg in ("dir", None) for keyword in call.keywords)
        and named(path) not in without
    ]

    assert loose == []


def test_importing_elasticdl_loads_no_framework(run_python) -> None:
    listing = run_python("import elasticdl, json, sys; print(json.dumps(sorted(sys.modules)))")

    assert set(json.loads(listing.stdout)) & set(FRAMEWORKS) == set()


def test_help_loads_no_framework(run_python) -> None:
    listing = run_python(
        "import json, sys\n"
        "from elasticdl.cli.main import main\n"
        "sys.argv = ['elasticdl', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    pass\n"
        "print(json.dumps(sorted(sys.modules)))"
    )

    assert set(json.loads(listing.stdout.splitlines()[-1])) & set(FRAMEWORKS) == set()


def test_the_documented_tree_has_every_error() -> None:
    classes = [
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == errors.__name__
    ]

    drawn = {
        word for line in errors.__doc__.splitlines() for word in line.strip(" │├└─").split()[:1]
    }
    assert set(classes) - drawn == set()


def test_every_error_has_a_failure_exit_code() -> None:
    codes = {
        name: value.exit_code
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.ElasticDLError)
    }

    assert {name for name, code in codes.items() if code == 0} == set()


@pytest.mark.parametrize("path", [path for path in FILES if ">>> " in path.read_text()], ids=named)
def test_examples_in_docstrings_are_correct(path: Path) -> None:
    module = importlib.import_module(module_of(path))

    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS)

    assert results.attempted > 0
    assert results.failed == 0


def test_the_test_files_that_run_first_exist(repository: Path) -> None:
    tree = ast.parse((repository / "tests" / "conftest.py").read_text())
    (longest,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_LONGEST"
    ]

    assert [name for name in longest if not (repository / name).is_file()] == []


# One interface with a file for each format; names that users type.
_SHARED_NAMES = {"RowWriter", "Trainer", "DNN"}


def test_no_two_public_classes_share_a_name(repository: Path) -> None:
    found: dict[str, list[str]] = {}
    for path in sorted((repository / "src" / "elasticdl").rglob("*.py")):
        if path.stem.endswith("_pb2"):
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(repository)))

    shared = {name: files for name, files in found.items() if len(files) > 1}

    assert {name: files for name, files in shared.items() if name not in _SHARED_NAMES} == {}


@pytest.mark.parametrize("path", FILES, ids=named)
def test_callers_named_in_a_docstring_use_the_module(path: Path) -> None:
    """They import it, or start or load it by its name."""
    described = ast.get_docstring(ast.parse(path.read_text())) or ""
    found = re.search(r"Callers?:(.*?)(?:\n\n|\Z)", described, re.DOTALL)
    stem = path.parent.name if path.stem == "__init__" else path.stem
    uses = re.compile(rf"\b{stem}\b|import_module\(")

    for name in re.findall(r"`(?!benchmarks/)([\w/]+\.py)`", found[1] if found else ""):
        callers = [each for each in FILES if each.as_posix().endswith(f"/{name}")]
        assert any(uses.search(each.read_text()) for each in callers), name
