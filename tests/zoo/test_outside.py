"""Modules of the user that a trained model would lack are named, and no others."""

from __future__ import annotations

import sysconfig

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
    first, second = notes("def custom_model():\n    from beside_it import Net\n")

    assert "beside/beside_it.py, which " in first
    assert "models/net.py imports, is outside the zoo" in first
    assert "No module named 'beside_it'. Copy it into the zoo, or install it" in first
    assert "beside_too.py, which " in second


def test_files_of_the_zoo_libraries_and_imports_for_types_only_are_not_named(notes, tmp_path):
    (tmp_path / "models/beside_it.py").write_text("")
    (tmp_path / "models/parts").mkdir()

    assert notes(
        "import beside_it, json, numpy, parts.x, keras, missing_one, elasticdl\n"
        "from . import beside_too\n"
        "if TYPE_CHECKING:\n    import beside_too\n"
    ) == []  # fmt: skip


def test_a_zoo_that_is_imported_by_the_name_of_its_folder_is_named(notes, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))

    (note,) = notes("from models.parts import Net\n")

    assert "imports 'models', which is the folder of the zoo itself" in note


@pytest.mark.parametrize("has_names", [False, True])
def test_an_editable_package_is_not_named(notes, tmp_path, monkeypatch, has_names):
    installed = tmp_path / "installed"
    installed.mkdir()
    names = {"beside_it": ["project"], "beside_too": ["project"]} if has_names else {}
    monkeypatch.setattr(outside.importlib.metadata, "packages_distributions", lambda: names)
    if not has_names:
        (installed / "_project.pth").write_text(f"{tmp_path / 'beside'}\n")
        monkeypatch.setattr(sysconfig, "get_path", lambda _: str(installed))

    assert notes("import beside_it\n") == []
