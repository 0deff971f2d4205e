"""A file says itself what it is: by its content, never by its name."""

import json
import shutil
import subprocess
import zipfile

import h5py
import numpy as np
import pytest
from tests.saved_models.conftest import of_keras_2_2_4, sequential

from elasticdl.errors import ModelFileError
from elasticdl.saved_models import bounds
from elasticdl.saved_models.file_format import identify, sha256_of


def refused(path) -> str:
    with pytest.raises(ModelFileError) as raised:
        identify(path)
    return str(raised.value)


@pytest.mark.parametrize(
    ("fixture", "format_", "library", "kind"),
    [
        ("old_h5", "h5", "tf_keras", "model"),
        ("tfk_h5", "h5", "tf_keras", "model"),
        ("tfk_keras", "keras", "tf_keras", "model"),
        ("tfk_folder", "saved_model", "tf_keras", "model"),
        ("tfk_json", "json", "tf_keras", "architecture"),
        ("tfk_weights", "h5", "tf_keras", "weights"),
        ("tfk_new_weights", "h5", None, "weights"),
        ("keras_h5", "h5", "keras", "model"),
        ("keras_keras", "keras", "keras", "model"),
        ("keras_json", "json", "keras", "architecture"),
        ("keras_weights", "h5", None, "weights"),
        ("torch_whole", "torch_zip", "torch", "model"),
        ("torch_state", "torch_zip", "torch", "weights"),
        ("torch_old", "torch_pickle", "torch", "model"),
        ("torch_script", "torchscript", "torch", "model"),
        ("torch_exported", "torch_export", "torch", "model"),
    ],
)
def test_the_format_does_not_depend_on_the_file_name(
    request, tmp_path, fixture, format_, library, kind
) -> None:
    original = request.getfixturevalue(fixture)
    path = tmp_path / "mnist.model"
    (shutil.copytree if original.is_dir() else shutil.copy)(original, path)

    found = identify(path)

    assert (found.format, found.library, found.kind) == (format_, library, kind)
    assert found.num_bytes > 0


@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_keras_2_2_4_file_may_have_text_or_bytes_attributes(tmp_path, as_bytes) -> None:
    found = identify(of_keras_2_2_4(tmp_path / "model.h5", as_bytes=as_bytes))

    assert found.version == "2.2.4"
    assert found.architecture["class_name"] == "Sequential"
    assert found.training_config["optimizer_config"]["config"]["lr"] == 1.0
    assert found.num_values == 4 * 3 + 3 + 3 * 2 + 2


@pytest.mark.parametrize("fixture", ["tfk_h5", "tfk_keras", "tfk_folder", "keras_h5"])
def test_the_compile_options_of_a_file_are_read(request, fixture) -> None:
    said = json.dumps(identify(request.getfixturevalue(fixture)).training_config)

    assert "adam" in said.lower()
    assert "sparse_categorical_crossentropy" in said


def test_a_weights_file_describes_its_layout(tfk_weights, tfk_new_weights) -> None:
    assert identify(tfk_weights).layout == "legacy"
    assert identify(tfk_new_weights).layout == "layers"


def test_a_missing_file_is_an_error_with_a_similar_name(old_h5) -> None:
    message = refused(old_h5.with_name("keras_2_2_5.h5"))

    assert f"Did you mean {old_h5}?" in message
    assert "there is no folder" in refused(old_h5 / "nowhere" / "model.h5")


def test_an_empty_file_is_an_error(tmp_path) -> None:
    (tmp_path / "model.h5").touch()

    assert "is empty" in refused(tmp_path / "model.h5")


@pytest.mark.parametrize(
    "fixture", ["tfk_h5", "tfk_keras", "tfk_json", "torch_whole", "torch_script", "torch_exported"]
)
def test_a_truncated_file_is_an_error(request, tmp_path, fixture) -> None:
    content = request.getfixturevalue(fixture).read_bytes()
    path = tmp_path / "cut"
    path.write_bytes(content[: len(content) // 2])

    message = refused(path)

    assert str(path) in message
    assert any(word in message for word in ("truncated", "not complete JSON"))


def test_a_truncated_folder_is_an_error(tfk_folder, tmp_path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tfk_folder, folder)
    graph = folder / "saved_model.pb"
    graph.write_bytes(graph.read_bytes()[:-100])

    assert "truncated" in refused(folder)


def test_a_folder_without_its_weights_is_an_error(tfk_folder, tmp_path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tfk_folder, folder)
    shutil.rmtree(folder / "variables")

    assert "its weights are missing" in refused(folder)


def test_a_serving_only_folder_is_an_error(tmp_path, quiet) -> None:
    import tensorflow as tf

    module = tf.Module()
    module.weight = tf.Variable(1.0)
    tf.saved_model.save(module, str(tmp_path / "served"))

    assert "saved for serving" in refused(tmp_path / "served")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"\x80\x04\x95\x00", "a Python pickle, but PyTorch did not write it"),
        (b"<!DOCTYPE html>", "is a web page (or XML), not a model. Download the file itself"),
        (b"root:x:0:0", "is not a model: neither Keras nor PyTorch wrote it"),
        (b'{"lr": 1}', "is JSON, but not of a model"),
        (b'{"class_name": [', "not complete JSON"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_not_a_model_is_described(tmp_path, content, said) -> None:
    path = tmp_path / "model.h5"
    path.write_bytes(content)

    assert said in refused(path)


@pytest.mark.parametrize(
    "content", [b"secret:x:0", b'{"secret": 1}', b"<secret>", b"\x80\x04secret", b'{"secret']
)
def test_an_error_never_shows_the_content_of_a_file(tmp_path, content) -> None:
    path = tmp_path / "model.h5"
    path.write_bytes(content)

    assert "secret" not in refused(path)


def test_an_unrelated_zip_archive_is_not_a_model(tmp_path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("secret.txt", "Dear")

    message = refused(tmp_path / "a.pt")

    assert "a zip archive, but not a model" in message
    assert "secret" not in message


def test_a_file_beyond_the_size_limit_is_refused(old_h5, monkeypatch) -> None:
    monkeypatch.setattr(bounds, "MAX_BYTES", 1000)

    assert "expected at most 1,000" in refused(old_h5)


def test_an_archive_that_unpacks_beyond_the_limit_is_refused(tmp_path, monkeypatch) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(100_000))
    monkeypatch.setattr(bounds, "MAX_BYTES", 50_000)

    assert "all that is in this archive claims 100,000 bytes" in refused(tmp_path / "a.pt")


def test_declared_but_missing_weights_are_an_error(tmp_path) -> None:
    import h5py

    path = of_keras_2_2_4(tmp_path / "model.h5")
    with h5py.File(path, "a") as file:
        # Nothing of it is written: a terabyte of zeros.
        file["model_weights"].create_dataset("vast", (10**9, 250), "f4", chunks=(1000, 250))

    assert "/model_weights/vast, with the others, claims 1,000,000,000" in refused(path)


@pytest.mark.parametrize("kind", ["external", "soft"])
def test_a_link_to_another_file_is_an_error(tmp_path, kind) -> None:
    import h5py

    path = of_keras_2_2_4(tmp_path / "model.h5")
    link = {"external": h5py.ExternalLink("/etc/passwd", "/"), "soft": h5py.SoftLink("/x")}[kind]
    with h5py.File(path, "a") as file:
        file["model_weights"]["more"] = link

    assert "is a link" in refused(path)


def test_weights_stored_in_another_file_are_an_error(tmp_path) -> None:
    import h5py

    path = of_keras_2_2_4(tmp_path / "model.h5")
    with h5py.File(path, "a") as file:
        file.create_dataset("more", (4,), "u1", external=[("/etc/passwd", 0, 4)])

    assert "are stored in another file on this machine" in refused(path)


def test_weights_that_would_be_unpickled_are_an_error(keras_keras, tmp_path) -> None:
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(keras_keras) as old, zipfile.ZipFile(path, "w") as new:
        for name in ("config.json", "metadata.json"):
            new.writestr(name, old.read(name))
        new.writestr("model.weights.npz", b"")

    assert "but model.weights.npz" in refused(path)


def test_the_digest_of_a_folder_covers_names_and_contents(tmp_path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").write_text("1")
    (tmp_path / "a").write_text("2")
    said = subprocess.run(
        "find * -type f | LC_ALL=C sort | xargs sha256sum | sha256sum",
        shell=True,
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )

    assert sha256_of(tmp_path) == said.stdout.split()[0]
    (tmp_path / "b" / "x").rename(tmp_path / "b" / "y")
    assert sha256_of(tmp_path) != said.stdout.split()[0]


def test_inspecting_a_file_imports_no_framework(
    old_h5, tfk_folder, torch_whole, torch_exported, run_python
) -> None:
    paths = [str(path) for path in (old_h5, tfk_folder, torch_whole, torch_exported)]
    said = run_python(
        "import json, sys\n"
        "from elasticdl.saved_models.file_format import identify\n"
        "from elasticdl.saved_models.scan import scan\n"
        f"for path in {paths}: scan(identify(path))\n"
        "print(json.dumps(sorted(sys.modules)))"
    )

    modules = set(json.loads(said.stdout.splitlines()[-1]))
    assert modules & {"keras", "tensorflow", "tf_keras", "torch"} == set()


def test_globals_of_a_pytorch_file_are_read_without_unpickling(torch_whole) -> None:
    assert "torch.nn.modules.container.Sequential" in identify(torch_whole).globals


def test_a_checkpoint_is_recognized_as_weights(tmp_path) -> None:
    import torch

    torch.save({"state_dict": sequential().state_dict(), "epoch": 3}, tmp_path / "c.pt")

    assert identify(tmp_path / "c.pt").kind == "weights"
    assert np.isfinite(identify(tmp_path / "c.pt").num_bytes)


@pytest.mark.parametrize("link", ["extra", "assets/words.txt", "variables/variables.index"])
def test_a_link_out_of_a_folder_is_refused(tfk_folder, tmp_path, link) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tfk_folder, folder)
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    place = folder / link
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(secret)

    assert f"{place} is a link to something outside the folder" in refused(folder)


def test_a_link_within_a_folder_counts_as_a_file(tfk_folder, tmp_path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tfk_folder, folder)
    (folder / "copy.pb").symlink_to("saved_model.pb")

    assert identify(folder).format == "saved_model"


@pytest.mark.parametrize("version", ["9" * 5000, "\u00b2", "2", "", "x.1"])
def test_an_invalid_version_is_treated_as_older_than_keras_3(tfk_h5, tmp_path, version) -> None:
    path = tmp_path / "model.h5"
    shutil.copy(tfk_h5, path)
    with h5py.File(path, "r+") as file:
        file.attrs["keras_version"] = version

    assert identify(path).library == "tf_keras"


def test_a_type_in_place_of_numbers_is_refused(tfk_h5, tmp_path) -> None:
    path = tmp_path / "model.h5"
    shutil.copy(tfk_h5, path)
    with h5py.File(path, "r+") as file:
        file["model_weights/odd"] = np.dtype("f8")

    assert "/model_weights/odd is a Datatype" in refused(path)
