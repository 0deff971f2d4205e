"""A trained model is a folder that says all of itself, and says when it is not whole."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from elasticdl.artifacts import trained_model_pb2
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.trained_model import (
    MODEL_FILE,
    PARAMS_FILE,
    Description,
    _decode,
    _encode,
    load_trained_model,
    save_trained_model,
)
from elasticdl.errors import OutputError

FULL = Description(
    model_def="mnist.model",
    model_def_params='{"units": [10, 5]}',
    input_function="other.input_fn",
    loss="other.loss",
    optimizer="other.optimizer",
    docker_commit_id="registry/image@sha256:00",
    dialect="elasticdl_module",
    model_zoo="https://example.org/zoo",
    zoo_commit="abc",
    framework="keras",
    versions={"elasticdl": "1.0", "numpy": "2"},
    data_schema_json='[{"name": "image"}]',
    job_id="job-1",
    job_json="{}",
    created_unix_s=12.5,
    overrides={"loss": "other.loss"},
    metrics={"loss": 0.5, "recall": [0.25, 1.0], "one_class": [0.5]},
    step=7,
    classes=("cat", "dog"),
)
PARAMS = {"dense/kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "seed": np.uint32([1])}


def write_code(path: Path) -> None:
    (path / "mnist.py").write_text("model = 1")


def write_exports(path: Path) -> None:
    (path / "model.keras").write_bytes(b"zip")
    (path / "saved_model" / "assets").mkdir(parents=True)
    (path / "saved_model" / "saved_model.pb").write_bytes(b"graph")


def fail(path: Path) -> None:
    (path / "half").write_bytes(b"")
    raise KeyError


# --- There and back ---------------------------------------------------------------------------


def test_a_model_description_survives_a_round_trip(folder) -> None:
    save_trained_model(folder, FULL, PARAMS)
    found = load_trained_model(folder.uri).description

    assert found == replace(FULL, params_sha256=found.params_sha256)
    assert len(found.params_sha256) == 64


def test_saving_returns_the_same_model_as_loading(folder) -> None:
    saved = save_trained_model(folder, FULL, PARAMS, export=write_exports)

    assert saved.description == load_trained_model(folder.uri).description


def test_tensors_survive_a_round_trip(folder) -> None:
    save_trained_model(folder, FULL, PARAMS)
    found = load_trained_model(folder.uri).params

    assert set(found) == set(PARAMS)
    for path, array in PARAMS.items():
        np.testing.assert_array_equal(found[path], array, strict=True)


def test_tensors_are_read_lazily(folder) -> None:
    save_trained_model(folder, FULL, PARAMS)
    folder.delete(PARAMS_FILE)

    model = load_trained_model(folder.uri)

    with pytest.raises(OutputError, match=r"params\.safetensors: there is no such file"):
        _ = model.params


def test_the_code_is_stored_with_the_model(folder) -> None:
    save_trained_model(folder, FULL, PARAMS, copy_zoo=write_code)

    assert (load_trained_model(folder.uri).zoo / "mnist.py").read_text() == "model = 1"


def test_a_remote_models_code_is_downloaded_once() -> None:
    from elasticdl.artifacts.folder import OutputFolder

    folder = OutputFolder("memory://downloaded/output")
    save_trained_model(folder, FULL, PARAMS, copy_zoo=write_code)
    model = load_trained_model(folder.uri)
    first = model.zoo
    folder.delete("zoo")

    assert model.zoo == first
    assert (first / "mnist.py").exists()


def test_exports_are_stored_beside_the_model_by_name(folder) -> None:
    save_trained_model(folder, FULL, PARAMS, export=write_exports)
    model = load_trained_model(folder.uri)

    assert model.description.exports == ("model.keras", "saved_model")
    assert folder.read_bytes("model.keras") == b"zip"
    assert (model.exported("saved_model") / "saved_model.pb").read_bytes() == b"graph"


def test_a_missing_export_is_reported_with_the_existing_ones(folder) -> None:
    save_trained_model(folder, FULL, PARAMS, export=write_exports)

    with pytest.raises(
        OutputError, match=r"contains no model\.pt2; it has model\.keras, saved_model"
    ):
        load_trained_model(folder.uri).exported("model.pt2")


def test_the_time_of_saving_is_recorded(folder) -> None:
    save_trained_model(folder, Description("m"), {})

    assert load_trained_model(folder.uri).description.created_unix_s > 1.7e9


def test_the_first_fields_have_the_published_numbers() -> None:
    fields = trained_model_pb2.TrainedModel.DESCRIPTOR.fields

    assert {field.number: field.name for field in fields if field.number < 20} == {
        1: "docker_commit_id",
        2: "model_def",
        3: "model_def_params",
        4: "params_filename",
        5: "input_function",
        6: "loss",
        7: "optimizer",
    }


def test_any_protobuf_reader_reads_the_file(folder) -> None:
    save_trained_model(folder, FULL, PARAMS)
    message = trained_model_pb2.TrainedModel.FromString(folder.read_bytes(MODEL_FILE))

    assert (message.model_def, message.params_filename) == ("mnist.model", "params.safetensors")


# --- Replacing --------------------------------------------------------------------------------


def test_a_model_replaces_another_completely(folder) -> None:
    save_trained_model(folder, FULL, PARAMS, copy_zoo=write_code, export=write_exports)
    folder.write_bytes("events.jsonl", b"")

    save_trained_model(folder, replace(FULL, step=8), {"w": np.zeros(1)})

    model = load_trained_model(folder.uri)
    assert (model.description.step, list(model.params)) == (8, ["w"])
    assert folder.list() == ["events.jsonl", PARAMS_FILE, MODEL_FILE]


@pytest.mark.parametrize("step", ["copy_zoo", "export"])
def test_a_model_that_cannot_be_prepared_keeps_the_existing_one(folder, step) -> None:
    save_trained_model(folder, FULL, PARAMS)
    before = folder.list()

    with pytest.raises(KeyError):
        save_trained_model(folder, FULL, {}, **{step: fail})

    assert set(load_trained_model(folder.uri).params) == set(PARAMS)
    assert folder.list() == before


def test_a_partly_published_model_cannot_be_loaded(folder, monkeypatch) -> None:
    save_trained_model(folder, FULL, PARAMS)
    publish = type(folder).publish

    def die_at_the_code(self, path: Path, name: str) -> None:
        if name == "zoo":
            raise KeyboardInterrupt
        publish(self, path, name)

    monkeypatch.setattr(type(folder), "publish", die_at_the_code)
    with pytest.raises(KeyboardInterrupt):
        save_trained_model(folder, FULL, {"w": np.zeros(1)}, copy_zoo=write_code)

    with pytest.raises(OutputError):
        load_trained_model(folder.uri)


@pytest.mark.parametrize("name", [MODEL_FILE, PARAMS_FILE, "zoo", "checkpoints", "job.json"])
def test_an_export_cannot_overwrite_our_files(folder, name) -> None:
    folder.write_bytes("job.json", b"{}")

    with pytest.raises(OutputError, match=f"The export wrote {name}"):
        save_trained_model(folder, FULL, PARAMS, export=lambda path: (path / name).mkdir())

    assert folder.list() == ["job.json"]


# --- What is not whole ------------------------------------------------------------------------


def test_a_missing_output_is_reported(folder) -> None:
    with pytest.raises(OutputError, match="no such folder"):
        load_trained_model(folder.uri)


def test_the_error_on_a_misspelled_output_names_a_model_beside_it(tmp_path, monkeypatch) -> None:
    model, empty = tmp_path / "my_model", tmp_path / "my_mode2"
    save_trained_model(OutputFolder(str(model)), FULL, PARAMS)
    empty.mkdir()
    monkeypatch.chdir(tmp_path)

    for missing in (tmp_path / "my_mode", "my_mode"):
        with pytest.raises(OutputError, match=f"no such folder; did you mean '{model}'[?] Pass"):
            load_trained_model(missing)
    with pytest.raises(OutputError, match="trained_model.pb is a file. Pass its folder"):
        load_trained_model(model / MODEL_FILE)


def test_a_model_of_an_unlike_name_is_not_suggested(tmp_path) -> None:
    save_trained_model(OutputFolder(str(tmp_path / "fraud")), FULL, PARAMS)

    with pytest.raises(OutputError, match=r"no such folder\. Pass"):
        load_trained_model(tmp_path / "run_a")


def test_an_output_of_an_unfinished_training_is_reported(folder) -> None:
    folder.write_bytes("checkpoints/best.json", b"")

    with pytest.raises(OutputError, match=r"not finished.*train` again"):
        load_trained_model(folder.uri)


def test_a_folder_that_is_not_a_model_is_reported(folder) -> None:
    folder.write_bytes("a", b"")

    with pytest.raises(OutputError, match=r"contains no trained_model\.pb"):
        load_trained_model(folder.uri)


@pytest.mark.parametrize("cut", [0, 1, 20, 60])
def test_a_truncated_model_file_is_named(folder, cut) -> None:
    save_trained_model(folder, FULL, PARAMS)
    folder.write_bytes(MODEL_FILE, folder.read_bytes(MODEL_FILE)[:cut])

    with pytest.raises(OutputError, match=r"trained_model\.pb: damaged"):
        load_trained_model(folder.uri)


def test_every_changed_byte_of_the_model_file_is_detected() -> None:
    data = _encode(FULL)

    for at in range(len(data)):
        with pytest.raises(OutputError, match="here: damaged"):
            _decode(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :], "here")


def test_a_changed_byte_of_the_tensors_is_detected(folder) -> None:
    save_trained_model(folder, FULL, PARAMS)
    data = folder.read_bytes(PARAMS_FILE)
    folder.write_bytes(PARAMS_FILE, data[:-1] + bytes([data[-1] ^ 1]))

    with pytest.raises(OutputError, match=r"params\.safetensors: damaged: expected SHA-256"):
        _ = load_trained_model(folder.uri).params


@pytest.mark.parametrize("version", [0, 2])
def test_another_format_version_is_refused_with_its_writer(folder, version) -> None:
    folder.write_bytes(MODEL_FILE, _encode(replace(FULL, format_version=version)))

    with pytest.raises(
        OutputError, match=rf"format version {version} .*elasticdl 1\.0; this version"
    ):
        load_trained_model(folder.uri)


@pytest.mark.parametrize("name", ["../params", "/etc/passwd", "a/../../b"])
def test_tensors_outside_the_folder_are_refused(folder, name) -> None:
    folder.write_bytes(MODEL_FILE, _encode(replace(FULL, params_filename=name)))

    with pytest.raises(OutputError, match="not a valid name inside"):
        _ = load_trained_model(folder.uri).params


def test_a_link_out_of_the_folder_is_refused(local_folder) -> None:
    save_trained_model(local_folder, FULL, PARAMS)
    path = local_folder.local_path(PARAMS_FILE)
    with tempfile.NamedTemporaryFile() as outside:
        path.replace(outside.name)
        path.symlink_to(outside.name)

        with pytest.raises(OutputError, match="outside the folder"):
            _ = load_trained_model(local_folder.uri).params


def test_a_model_without_its_code_is_named(local_folder) -> None:
    save_trained_model(local_folder, FULL, PARAMS)

    with pytest.raises(OutputError, match="zoo: is missing from the trained model"):
        _ = load_trained_model(local_folder.uri).zoo
