"""Modules of the user that a trained model would lack are named, and no others."""

from __future__ import annotations

import shutil

import pytest

from elasticdl.job import ModelReference
from elasticdl.zoo import open_zoo, outside
from elasticdl.zoo.outside import outside_notes


@pytest.fixture
def notes(tmp_path, monkeypatch):
    """Return a function (code of the model file) -> notes; `beside` is on `sys.path`."""
    zoo, beside = tmp_path / "models", tmp_path / "beside"
    zoo.mkdir()
    beside.mkdir()
    monkeypatch.syspath_prepend(str(beside))
    (beside / "beside_it.py").write_text("import beside_too\n")
    (beside / "beside_too.py").write_text("")

    def notes(code: str) -> list[str]:
        (zoo / "net.py").write_text(code)
        return outside_notes(ModelReference(str(zoo), "net"), open_zoo(str(zoo)), zoo)

    return notes


def test_modules_beside_the_script_are_named_with_those_that_they_import(notes):
    (note,) = notes("def custom_model():\n    from beside_it import Net\n")

    assert "beside/beside_it.py, which " in note
    assert "models/net.py imports, and " in note
    assert "beside_too.py, which " in note
    assert "imports, are outside the zoo and will not be in the trained model" in note
    assert "(No module named 'beside_it'). Copy them into the zoo, or install them" in note


def test_files_of_the_zoo_libraries_and_imports_for_types_only_are_not_named(notes, tmp_path):
    (tmp_path / "models/beside_it.py").write_text("")
    (tmp_path / "models/parts").mkdir()

    assert notes(
        "import beside_it, json, numpy, parts.x, keras, missing_one, elasticdl\n"
        "from . import beside_too\n"
        "if TYPE_CHECKING:\n    import beside_too\n"
    ) == []  # fmt: skip


@pytest.mark.parametrize(
    "code",
    [
        'if __name__ == "__main__":\n    import beside_too\n',
        "if not TYPE_CHECKING:\n    pass\nelse:\n    import beside_too\n",
        "try:\n    import beside_too\nexcept ImportError:\n    beside_too = None\n",
        "try:\n    import beside_too\nexcept (KeyError, ModuleNotFoundError):\n    pass\n",
        "try:\n    import beside_too\nexcept:\n    pass\nelse:\n    import beside_it\n",
        "with contextlib.suppress(ImportError):\n    import beside_too\n",
    ],
)
def test_imports_that_are_not_needed_are_not_named(notes, code):
    assert notes(code) == []


@pytest.mark.parametrize(
    "code",
    [
        'if __name__ != "__main__":\n    import beside_too\n',
        "if not TYPE_CHECKING:\n    import beside_too\n",
        "try:\n    import beside_too\nexcept KeyError:\n    pass\n",
        "try:\n    import beside_too\nexcept ImportError:\n    raise SystemExit from None\n",
        "try:\n    import missing_one\nexcept ImportError:\n    import beside_too\n",
        "with open('x'):\n    import beside_too\n",
    ],
)
def test_imports_that_are_needed_are_named(notes, code):
    (note,) = notes(code)

    assert "beside_too.py, which " in note
    assert note.endswith("Copy it into the zoo, or install it as a package.")


def test_of_a_package_only_the_imported_files_are_read(notes, tmp_path):
    package = tmp_path / "beside/package_beside"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "used.py").write_text("from .inner import x\n")
    (package / "inner.py").write_text("import beside_too\n")
    (package / "unused.py").write_text("import beside_it\n")

    (note,) = notes("from package_beside import used\n")

    assert "package_beside, which " in note
    assert "package_beside/inner.py imports, are outside" in note
    assert "beside_it" not in note


def test_a_link_out_of_the_zoo_is_named(notes, tmp_path, monkeypatch):
    zoo, copy = tmp_path / "models", tmp_path / "copy"
    (tmp_path / "common_beside").mkdir()
    (tmp_path / "common_beside/__init__.py").write_text("")
    (zoo / "common_beside").symlink_to("../common_beside")
    notes("import common_beside\n")
    copy.mkdir()
    shutil.copy(zoo / "net.py", copy)
    monkeypatch.syspath_prepend(str(zoo))

    (note,) = outside_notes(ModelReference(str(zoo), "net"), open_zoo(str(zoo)), copy)

    assert "common_beside, which " in note
    assert "models/net.py imports, is outside the zoo" in note


@pytest.mark.parametrize("prefix", ["models_of_zoo", "project_above.models"])
def test_a_zoo_that_is_imported_by_the_name_of_its_folder_is_named(tmp_path, monkeypatch, prefix):
    zoo = tmp_path.joinpath(*prefix.split("."))
    zoo.mkdir(parents=True)
    (zoo.parent / "other.py").write_text("import missing_one\n")
    (zoo / "net.py").write_text(f"from {prefix}.parts import Net\nfrom {prefix} import more\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    (note,) = outside_notes(ModelReference(str(zoo), "net"), open_zoo(str(zoo)), zoo)

    assert f"imports {prefix!r}, which is the folder of the zoo itself" in note
    assert "cannot be loaded elsewhere" in note
    assert note.endswith(f"`import x` in place of `import {prefix}.x`.")


def test_a_file_beside_the_zoo_in_the_same_package_is_named_alone(tmp_path, monkeypatch):
    zoo = tmp_path / "package_above/models"
    zoo.mkdir(parents=True)
    (zoo.parent / "shared.py").write_text("")
    (zoo.parent / "train.py").write_text("import package_above.train\n")
    (zoo / "net.py").write_text("from package_above.shared import x\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    (note,) = outside_notes(ModelReference(str(zoo), "net"), open_zoo(str(zoo)), zoo)

    assert "package_above/shared.py, which " in note
    assert "train.py" not in note


@pytest.mark.parametrize("adds_path", [False, True])
def test_a_module_in_a_folder_of_the_zoo_on_the_path_is_named(
    notes, tmp_path, monkeypatch, adds_path
):
    source = tmp_path / "models/src"
    (source / "package_in_src").mkdir(parents=True)
    (source / "package_in_src/__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(source))

    found = notes("sys.path.insert(0, 'src')\n" * adds_path + "import package_in_src\n")

    assert len(found) == (not adds_path)
    assert all("'package_in_src', which is src/package_in_src in the zoo" in each for each in found)
    assert all("Import it as `src.package_in_src`" in each for each in found)


@pytest.mark.parametrize("has_names", [False, True])
@pytest.mark.parametrize("function", ["getsitepackages", "getusersitepackages"])
def test_an_editable_package_is_not_named(notes, tmp_path, monkeypatch, has_names, function):
    installed = tmp_path / "installed"
    installed.mkdir()
    names = {"beside_it": ["project"], "beside_too": ["project"]} if has_names else {}
    monkeypatch.setattr(outside.importlib.metadata, "packages_distributions", lambda: names)
    if not has_names:
        (tmp_path / "link").symlink_to("beside")
        (installed / "_project.pth").write_text(f"import x\n{tmp_path / 'link'}\n")
        result = [str(installed)] if function == "getsitepackages" else str(installed)
        monkeypatch.setattr(outside.site, function, lambda: result)

    assert notes("import beside_it\n") == []


def test_installed_packages_are_listed_only_if_a_module_may_be_outside(notes, monkeypatch):
    calls: list[int] = []
    monkeypatch.setattr(
        outside.importlib.metadata, "packages_distributions", lambda: calls.append(1) or {}
    )

    notes("import json, numpy\n")
    assert calls == []
    notes("import beside_it, beside_too\n")
    assert calls == [1]
