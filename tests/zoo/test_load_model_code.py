"""What `model_def` names is imported afresh, from its own zoo, and says what went wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from elasticdl.errors import UsageError, UserCodeError
from elasticdl.job import ModelReference
from elasticdl.zoo import load, load_symbol


@pytest.fixture(autouse=True)
def clean_imports():
    before, path = dict(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - set(before):
        if not name.startswith(("elasticdl", "keras", "tensorflow", "numpy")):
            del sys.modules[name]
    sys.path[:] = path


def write(folder: Path, **files: str) -> str:
    for name, text in files.items():
        path = folder / (name.replace("__in__", "/").removesuffix("_init") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder)


def reference(zoo: str, model_def: str, **kwargs):
    return load(ModelReference(zoo, model_def, **kwargs))


def test_the_symbol_is_loaded_with_its_place(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    zoo = write(tmp_path, m="import os\n\n\n@staticmethod\ndef net():\n    return 7\n")

    loaded = reference(zoo, "m.net")

    assert loaded.symbol.value() == 7
    assert str(loaded.symbol) == "m.py:5"


def test_files_of_a_zoo_import_each_other(tmp_path) -> None:
    zoo = write(
        tmp_path,
        pack__in__model="from pack.layers import A\nfrom .layers import B\nfrom top import C\n"
        "net = (A, B, C)",
        pack__in__layers="A, B = 1, 2",
        top="C = 3",
    )

    assert reference(zoo, "pack.model.net").symbol.value == (1, 2, 3)


@pytest.mark.parametrize("package", [True, False])
def test_two_zoos_with_the_same_file_names_are_isolated(tmp_path, package) -> None:
    for name in ("one", "two"):
        write(
            tmp_path / name,
            fintech__in__model="from fintech import layers\nimport losses\n"
            "net = (layers.NAME, losses.NAME)",
            fintech__in__layers=f"NAME = {name!r}",
            losses=f"NAME = {name!r}",
        )
        if package:
            (tmp_path / name / "fintech" / "__init__.py").touch()
    # Only the first zoo has this file; the second must not find it there.
    write(tmp_path / "one", fintech__in__extra="X = 1")

    assert reference(str(tmp_path / "one"), "fintech.model.net").symbol.value == ("one", "one")
    assert reference(str(tmp_path / "two"), "fintech.model.net").symbol.value == ("two", "two")
    with pytest.raises(UsageError):
        reference(str(tmp_path / "two"), "fintech.extra.X")
    write(tmp_path / "two", asks="from fintech.extra import X")
    with pytest.raises(UserCodeError, match="No module named 'fintech.extra'"):
        reference(str(tmp_path / "two"), "asks.X")


def test_each_load_reads_the_current_files(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    zoo = write(tmp_path, m="from n import X\nnet = X", n="X = 1")
    first = reference(zoo, "m.net").symbol.value
    # Same size, same second: a cached bytecode file would be taken as fresh.
    write(tmp_path, n="X = 2")

    assert (first, reference(zoo, "m.net").symbol.value) == (1, 2)
    assert not list(tmp_path.rglob("__pycache__"))


def test_reloading_recreates_objects_of_all_files(tmp_path) -> None:
    zoo = write(tmp_path, m="from n import net", n="net = object()")
    loaded = reference(zoo, "m.net")

    again = loaded.reload()

    assert again.symbol.value is not loaded.symbol.value
    assert again.modules[0] is not loaded.modules[0]


def test_a_library_within_the_zoo_folder_is_not_reimported(tmp_path) -> None:
    write(tmp_path, m="import lib_of_mine\nnet = 1")
    write(tmp_path / "venv" / "site", lib_of_mine="X = 1")
    sys.path.append(str(tmp_path / "venv" / "site"))
    reference(str(tmp_path), "m.net")
    library = sys.modules["lib_of_mine"]

    reference(str(tmp_path), "m.net")

    assert sys.modules["lib_of_mine"] is library


def test_a_file_named_like_a_library_is_refused_with_the_reason(tmp_path) -> None:
    zoo = write(tmp_path, json="net = 1")

    with pytest.raises(UsageError, match="for the name 'json', Python finds .*json/__init__.py"):
        reference(zoo, "json.net")


def test_errors_in_a_file_show_only_the_users_lines(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    zoo = write(tmp_path, m="from n import f\nnet = f()", n="def f():\n    return 1 / 0")

    with pytest.raises(UserCodeError) as caught:
        reference(zoo, "m.net")

    lines = str(caught.value).splitlines()
    assert lines[0] == "m.py: importing the file raised:"
    files = [line.split(",")[0] for line in lines if line.lstrip().startswith("File")]
    frames = [file.split("/")[-1] for file in files]
    assert frames == ['m.py"', 'n.py"']
    assert lines[-1].strip() == "ZeroDivisionError: division by zero"


def test_a_syntax_error_is_reported_with_its_line(tmp_path) -> None:
    zoo = write(tmp_path, m="x = 1\nnet = = 2")

    with pytest.raises(UserCodeError) as caught:
        reference(zoo, "m.net")

    assert "line 2" in str(caught.value)
    assert "invalid syntax" in str(caught.value)


def test_a_file_that_exits_does_not_end_the_process(tmp_path) -> None:
    zoo = write(tmp_path, m="net = 1\nraise SystemExit(0)")

    with pytest.raises(UserCodeError, match="SystemExit"):
        reference(zoo, "m.net")


def test_a_missing_package_is_reported_with_the_zoos_requirements(tmp_path) -> None:
    zoo = write(tmp_path, m="import no_such_package_anywhere\nnet = 1")
    (tmp_path / "requirements.txt").write_text("no_such_package_anywhere\n")

    with pytest.raises(UserCodeError, match="pip install -r .*requirements.txt"):
        reference(zoo, "m.net")


def test_an_unknown_old_import_is_reported_with_the_known_ones(tmp_path) -> None:
    zoo = write(tmp_path, m="from elasticdl.python.common.k8s_client import Client\nnet = 1")

    with pytest.raises(UserCodeError, match="elasticdl.python.common.constants"):
        reference(zoo, "m.net")


def test_a_symbol_missing_in_the_file_is_reported_with_existing_ones(tmp_path) -> None:
    zoo = write(tmp_path, m="class MyModel: ...\ndef loss(): ...")

    with pytest.raises(
        UsageError, match=r"no 'MyModle'; it defines MyModel, loss; did you mean 'MyModel'\?$"
    ):
        reference(zoo, "m.MyModle")
    with pytest.raises(UsageError, match=r"m.py has no 'other'; it defines MyModel, loss\.$"):
        reference(zoo, "m.other")


def test_a_prebuilt_model_is_suggested_despite_a_namesake_file(tmp_path) -> None:
    zoo = write(tmp_path, classifier="class Own: ...")

    with pytest.raises(UsageError, match=r"defines Own. classifier.DNN is a prebuilt model: leave"):
        reference(zoo, "classifier.DNN")


def test_a_symbol_made_while_importing_is_found(tmp_path) -> None:
    zoo = write(tmp_path, m="globals()['net'] = 5")

    assert reference(zoo, "m.net").symbol.value == 5


def test_functions_are_searched_in_the_module_of_the_symbol(tmp_path) -> None:
    zoo = write(
        tmp_path,
        pack__in____init__="from .net import custom_model",
        pack__in__net="def custom_model(): ...\ndef loss(labels, outputs): ...",
    )

    loaded = reference(zoo, "pack.custom_model")

    assert loaded.find("loss").file.endswith("net.py")


@pytest.mark.parametrize("name", ["own_loss", "m.own_loss", "other.own_loss"])
def test_an_override_may_be_in_the_same_file_or_another(tmp_path, name) -> None:
    zoo = write(tmp_path, m="net = 1\nown_loss = 'm'", other="own_loss = 'other'")

    override = reference(zoo, "m.net", overrides={"loss": name}).overrides["loss"]

    assert override.value == ("other" if name.startswith("other") else "m")


def test_an_override_may_be_installed(tmp_path) -> None:
    zoo = write(tmp_path, m="net = 1")

    override = reference(zoo, "m.net", overrides={"loss": "os.path.join"}).overrides["loss"]

    import os

    assert override.value is os.path.join


def test_a_missing_override_is_reported_with_its_flag(tmp_path) -> None:
    zoo = write(tmp_path, m="net = 1\ndef my_loss(): ...")

    with pytest.raises(UsageError, match=r"--loss=m.my_los: .*m.py has no 'my_los'"):
        reference(zoo, "m.net", overrides={"loss": "m.my_los"})


def test_only_some_functions_can_be_overridden(tmp_path) -> None:
    zoo = write(tmp_path, m="net = 1")

    with pytest.raises(UsageError, match="model cannot be replaced"):
        reference(zoo, "m.net", overrides={"model": "m.net"})


def test_a_symbol_is_loaded_without_a_model(tmp_path) -> None:
    zoo = write(tmp_path, m="x = 1", pack__in__n="y = 2")

    assert load_symbol(zoo, "pack.n.y").value == 2
    assert load_symbol(None, "os.path.sep").value == "/"


def test_files_of_the_prebuilt_zoo_are_imported_once() -> None:
    pytest.importorskip("keras")

    for _ in range(2):
        loaded = load(ModelReference(None, "wide_and_deep.Regressor"))

        base = loaded.symbol.value.__mro__[1]
        assert base is sys.modules["elasticdl.zoo.prebuilt.regressor"].DNN


def test_the_prebuilt_zoo_keeps_its_full_module_names() -> None:
    pytest.importorskip("keras")

    loaded = load(ModelReference(None, "regressor.DNN"))

    assert loaded.symbol.value.__module__ == "elasticdl.zoo.prebuilt.regressor"
    assert loaded.zoo == "prebuilt"
