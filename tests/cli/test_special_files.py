"""A path of the user's that is no regular file gets one message at once, wherever it is given."""

import os
import shutil

import pytest
from tests.engines.conftest import MODEL, write_records

from elasticdl.cli.main import _run
from elasticdl.zoo.specs import copy_folder

pytestmark = pytest.mark.timeout(60)

SPEC = """
model:
  name: KerasFLModel
  spec:
    model_definition: {file}
"""
CONFIG = "src_code_path: src\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with records, a model file, and `fifo`, a named pipe without a writer."""
    monkeypatch.chdir(tmp_path)
    write_records(tmp_path / "train.recordio", 64)
    (tmp_path / "small.py").write_text(MODEL)
    for name in ("fifo", "fifo.yml", "fifo.recordio"):
        os.mkfifo(tmp_path / name)
    return tmp_path


def run(capsys, *arguments):
    code = _run([str(each) for each in arguments], debug=False)
    return code, capsys.readouterr().err


def train(capsys, **flags):
    given = {"data": "train.recordio", "output": "out", **flags}
    return run(capsys, "train", "--quiet", *(f"--{name}={value}" for name, value in given.items()))


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("fifo.yml", "a pipe"),
        ("fifo", "a pipe"),
        ("/dev/zero", "a device"),
        ("zoo.yml", "a folder"),
    ],
)
def test_a_spec_that_is_not_a_regular_file_is_refused_with_its_type(place, capsys, spec, kind):
    (place / "zoo.yml").mkdir()

    code, message = train(capsys, spec=spec)

    assert (code, kind in message) == (2, True), message
    assert "; expected " in message


def test_a_spec_from_process_substitution_is_refused_with_the_reason(place, capsys):
    reading, writing = os.pipe()

    code, message = train(capsys, spec=f"/dev/fd/{reading}")

    os.close(reading)
    os.close(writing)
    assert (code, "write the content to a file" in message) == (2, True), message


@pytest.mark.parametrize(
    ("file", "reason"), [("fifo", "a pipe"), ("/dev/zero", "a device"), ("/", "not a SavedModel")]
)
def test_a_model_definition_that_is_not_a_regular_file_is_refused(place, capsys, file, reason):
    pytest.importorskip("tensorflow")
    (place / "model.yml").write_text(SPEC.format(file=file))

    code, message = train(capsys, spec="model.yml")

    assert (code, reason in message) == (3, True), message


def test_links_from_a_saved_model_to_devices_are_not_copied(tmp_path):
    folder = tmp_path / "model"
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"graph")
    (folder / "variables" / "endless").symlink_to("/dev/zero")
    (folder / "everything").symlink_to("/")

    copy_folder(folder, tmp_path / "copy")

    assert [path.name for path in (tmp_path / "copy").rglob("*")] == ["saved_model.pb"]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ("fifo", "a pipe"),
        ("fifo.recordio", "a pipe"),
        ("fif*", "a pipe"),
        ("*.recordio", "a pipe"),
        ("/dev/zero", "a device"),
        ("folder", "a pipe"),
    ],
)
@pytest.mark.parametrize("command", ["train", "show"])
def test_data_that_are_not_regular_files_are_refused(place, capsys, data, kind, command):
    (place / "folder").mkdir()
    shutil.copy("train.recordio", "folder")
    os.mkfifo("folder/more.recordio")
    model = ["train", "--model_zoo=.", "--model_def=small", "--output=out"]

    code, message = run(
        capsys, *([*model, f"--data={data}"] if command == "train" else ["data", "show", data])
    )

    assert (code, kind in message) == (4, True), message


@pytest.mark.parametrize("data", ["fifo", "*.recordio"])
def test_files_to_prepare_must_be_regular_files(place, capsys, data):
    (place / "small.py").write_text(
        MODEL + "\n\ndef prepare_data_for_a_single_file(filename): ...\n"
    )
    given = ["--model_zoo=.", "--model_def=small", "--output=made", f"--input={data}"]

    code, message = run(capsys, "data", "prepare", *given)

    assert (code, "a pipe" in message) == (4, True), message


@pytest.mark.parametrize(
    "command",
    [
        ["federated", "simulate", "fifo"],
        ["federated", "party", "fifo"],
        ["federated", "aggregator", "/dev/zero"],
        ["federated", "status", "fifo"],
        ["federated", "init", "--session_config=fifo", "--data=run*", "fed"],
        ["session", "run", "--run_name=a", "--project_root=."],
        ["session", "check", "--run_name=a", "--project_root=."],
    ],
)
def test_a_config_that_is_not_a_regular_file_is_refused(place, capsys, command):
    (place / "runs" / "a").mkdir(parents=True)
    os.mkfifo(place / "runs" / "a" / "config.yaml")

    code, message = run(capsys, *command)

    assert code == 2, message
    assert "a pipe" in message or "a device" in message


@pytest.mark.parametrize("name", ["trained_model.pb", "job.json"])
def test_a_trained_model_that_is_a_pipe_is_refused(place, capsys, name):
    (place / "trained").mkdir()
    (place / "trained" / "job.json").write_text("{}")
    (place / "fifo").replace(place / "trained" / name)

    code, message = run(capsys, "evaluate", "--trained_model=trained", "--data=train.recordio")

    assert code == 6, message


def test_a_pipe_among_the_files_of_a_zoo_is_skipped(place, capsys):
    os.mkfifo(place / "pipe.py")

    code, message = train(capsys, model_zoo=".", model_def="smal")

    assert code == 2, message
    assert "Did you mean small" in message
