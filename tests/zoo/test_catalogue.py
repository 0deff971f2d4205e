"""The listing of the zoo is read from source, never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.zoo import catalogue


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """Return a zoo that cannot be imported, only read."""
    (tmp_path / "tables.py").write_text(
        '"""Models for tables.\n\nData: rows; 0 .. 9 of them. More of it.\n"""\n'
        "import no_such_package\n"
        "class Parent(keras.Model):\n"
        '    """Guesses."""\n'
        "    def __init__(self, size, *, rate=0.1): ...\n"
        "class Layer(keras.layers.Layer): ...\n"
    )
    (tmp_path / "more.py").write_text(
        '"""More."""\nclass Child(tables.Parent):\n    """Guesses better."""\n'
    )
    (tmp_path / "pictures.py").write_text(
        '"""Sees."""\n'
        "def custom_model(depth=3): ...\n"
        "def loss(output, labels): ...\n"
        "def optimizer(rate=0.1): ...\n"
    )
    (tmp_path / "shared.py").write_text('"""No model."""\ndef read(): ...\n')
    return tmp_path


def test_models_are_found_by_base_class_or_definitions(zoo: Path) -> None:
    names = [entry.name for entry in catalogue.entries(zoo)]

    assert names == ["more.Child", "pictures", "tables.Parent"]


def test_params_are_the_constructors_arguments(zoo: Path) -> None:
    entries = {entry.name: entry for entry in catalogue.entries(zoo)}

    assert [str(param) for param in entries["tables.Parent"].params] == ["size", "rate=0.1"]


def test_params_of_a_file_are_the_defaults_of_its_functions(zoo: Path) -> None:
    entries = {entry.name: entry for entry in catalogue.entries(zoo)}

    assert [str(param) for param in entries["pictures"].params] == ["depth=3", "rate=0.1"]


def test_the_data_are_described_in_one_sentence(zoo: Path) -> None:
    entries = {entry.name: entry for entry in catalogue.entries(zoo)}

    assert entries["tables.Parent"].data == "rows; 0 .. 9 of them"


def test_every_prebuilt_model_describes_itself_and_its_data() -> None:
    entries = catalogue.entries()

    assert {"classifier.DNN", "cifar10", "mnist", "regressor.DNN"} <= {e.name for e in entries}
    assert [
        e.name for e in entries if not e.summary.endswith(".") or e.data == "not described"
    ] == []
