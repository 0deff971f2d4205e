"""A dotted name is found in a zoo by looking, and stays inside of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.errors import UsageError
from elasticdl.zoo.folder import Zoo, ZooLocation, find, open_zoo


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Zoo:
    monkeypatch.chdir(tmp_path)
    return Zoo("work", tmp_path)


def write(zoo: Zoo, name: str, text: str) -> Path:
    path = zoo.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refused(zoo: Zoo, dotted: str) -> str:
    with pytest.raises(UsageError) as caught:
        find(zoo, dotted)
    return str(caught.value)


def test_the_last_part_of_a_name_is_a_symbol_of_the_file(zoo: Zoo) -> None:
    file = write(zoo, "a/b.py", "class C: ...")

    assert find(zoo, "a.b.C") == ZooLocation("a.b", file, "C")


def test_a_name_without_a_symbol_is_a_file(zoo: Zoo) -> None:
    file = write(zoo, "mnist/functional.py", "model = 1")

    assert find(zoo, "mnist.functional") == ZooLocation("mnist.functional", file, None)


def test_a_package_may_export_the_symbol(zoo: Zoo) -> None:
    write(zoo, "fintech/models.py", "class MyKerasModel: ...")
    package = write(zoo, "fintech/__init__.py", "from .models import MyKerasModel")

    assert find(zoo, "fintech.MyKerasModel") == ZooLocation("fintech", package, "MyKerasModel")


@pytest.mark.parametrize("package", [True, False])
def test_the_only_file_of_a_package_with_the_symbol_is_found(zoo, package) -> None:
    file = write(zoo, "fintech/models.py", "if True:\n    class MyKerasModel: ...")
    write(zoo, "fintech/data.py", "from .models import MyKerasModel\nraise RuntimeError")
    if package:
        write(zoo, "fintech/__init__.py", "")

    place = find(zoo, "fintech.MyKerasModel")

    assert place == ZooLocation("fintech.models", file, "MyKerasModel")


def test_a_symbol_defined_in_two_files_is_refused_naming_both(zoo: Zoo) -> None:
    write(zoo, "fintech/a.py", "class M: ...")
    write(zoo, "fintech/b.py", "M = 1")

    message = refused(zoo, "fintech.M")

    assert "fintech/a.py and fintech/b.py" in message


def test_a_symbol_in_both_a_file_and_its_namesake_folder_is_refused(zoo: Zoo) -> None:
    write(zoo, "mnist.py", "def net(): ...")
    write(zoo, "mnist/net.py", "")

    assert "mnist/net.py and mnist.py" in refused(zoo, "mnist.net")


def test_finding_a_name_imports_nothing(zoo: Zoo) -> None:
    write(zoo, "a.py", "raise RuntimeError('imported')\nC = 1")

    assert find(zoo, "a.C").symbol == "C"


def test_a_missing_symbol_is_reported_with_the_defined_ones(zoo: Zoo) -> None:
    write(zoo, "m.py", "import os\nclass MyModel: ...\ndef loss(): ...\n_private = 1")

    # The file may make the name at import, so that is where it is missed; a package cannot.
    write(zoo, "fintech/models.py", "class MyKerasModel: ...")

    message = refused(zoo, "fintech.MyKerasModle")

    assert "Did you mean fintech.models.MyKerasModel?" in message
    assert "models.py" in message


def test_several_existing_files_are_listed_in_the_plural(zoo: Zoo) -> None:
    for name in ("cycle.py", "layers.py", "net.py"):
        write(zoo, name, "")

    assert "; there are cycle.py, layers.py and net.py." in refused(zoo, "x.model")


def test_a_short_name_with_one_wrong_letter_is_corrected(zoo: Zoo) -> None:
    for name in ("cnn.py", "run.py"):
        write(zoo, name, "")

    assert refused(zoo, "cnm").endswith("there are cnn.py and run.py. Did you mean cnn?")


def test_a_missing_file_is_reported_with_existing_ones(zoo: Zoo) -> None:
    write(zoo, "mnist/functional.py", "")
    write(zoo, "mnist/notes.txt", "")

    message = refused(zoo, "mnist.functoinal.model")

    assert "there is neither a folder nor a file 'functoinal' in mnist; there is functional.py" in (
        message
    )
    assert "notes" not in message


def test_a_missing_prebuilt_model_error_omits_package_files() -> None:
    message = refused(open_zoo(None), "classifer.DNN")

    assert message == (
        "--model_def=classifer.DNN: no prebuilt model has this name. Did you mean classifier.DNN "
        "or classifier? `elasticdl zoo list` shows them. To use your own model, pass its folder "
        "with --model_zoo."
    )


@pytest.mark.parametrize("name", ["own", "own.Model"])
def test_the_zoo_of_a_model_in_the_current_folder_is_suggested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("")

    assert refused(open_zoo(None), name).endswith(
        "For a model of your own in own.py, add its folder: --model_zoo=."
    )


@pytest.mark.parametrize("name", ["../x.y", "a/b.py", "a.b.py", "a..b", "", "a.b-c", "/etc.x"])
def test_an_invalid_dotted_name_is_refused(zoo: Zoo, name: str) -> None:
    assert "is not a dotted name" in refused(zoo, name) or "neither" in refused(zoo, name)


def test_the_dotted_name_of_a_path_is_suggested(zoo: Zoo) -> None:
    assert "Did you mean --model_def=mnist.model?" in refused(zoo, "./mnist/model.py")


def test_the_zoo_name_of_a_relative_path_is_suggested(zoo: Zoo, monkeypatch) -> None:
    write(zoo, "mnist/model.py", "")
    monkeypatch.chdir(zoo.folder.parent)

    message = refused(zoo, f"{zoo.folder.name}/mnist/model.py")

    assert "Did you mean --model_def=mnist.model?" in message


def test_the_model_name_of_a_file_is_suggested(zoo: Zoo) -> None:
    write(zoo, "shapes.py", "class Net: ...")

    assert refused(zoo, "shapes.py") == (
        "--model_def=shapes.py is a file; expected a dotted name: --model_def=shapes"
    )
    assert refused(open_zoo(None), "shapes.py").endswith(
        "For a model of your own in shapes.py, add its folder: --model_zoo=. --model_def=shapes"
    )


def test_using_a_prebuilt_model_without_a_zoo_is_suggested(zoo: Zoo) -> None:
    write(zoo, "shapes.py", "")

    assert refused(zoo, "classifier.DNN").endswith(
        " classifier.DNN is a prebuilt model: leave out --model_zoo."
    )
    # Code of the prebuilt zoo that is not a model.
    assert "prebuilt" not in refused(zoo, "columns")


def test_copies_of_code_in_trained_models_are_not_suggested(zoo: Zoo) -> None:
    write(zoo, "out/zoo/classifier.py", "class Deep: ...")
    write(zoo, "out/trained_model.pb", "")

    message = refused(zoo, "clasifier.Deep")

    assert "out" not in message


def test_both_options_are_suggested_for_a_file_without_a_zoo(tmp_path, monkeypatch) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "model.py").write_text("")
    monkeypatch.chdir(tmp_path)

    message = refused(open_zoo(None), "work/model.py")

    assert message.endswith("--model_zoo=work --model_def=model")


def test_a_link_out_of_the_zoo_is_refused(zoo: Zoo, tmp_path_factory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "secret.py"
    outside.write_text("C = 1")
    (zoo.folder / "a.py").symlink_to(outside)

    assert "is a link that points outside the zoo" in refused(zoo, "a.C")


def test_a_zoo_path_is_expanded_as_in_a_shell(tmp_path, monkeypatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))

    assert open_zoo("$HOME/work").folder == open_zoo("~/work").folder == tmp_path / "work"


def test_a_missing_zoo_is_reported_with_a_similar_name(tmp_path) -> None:
    (tmp_path / "models").mkdir()

    with pytest.raises(UsageError) as caught:
        open_zoo(str(tmp_path / "model"))

    assert f"Did you mean {tmp_path / 'models'}?" in str(caught.value)


def test_a_zoo_that_is_a_file_is_refused(tmp_path) -> None:
    (tmp_path / "model.py").write_text("")

    with pytest.raises(UsageError, match="is a file; pass its folder"):
        open_zoo(str(tmp_path / "model.py"))


def test_without_a_zoo_the_prebuilt_one_is_used() -> None:
    assert find(open_zoo(None), "regressor.DNN").symbol == "DNN"
