"""A trained model keeps the zoo's code as it was, and no more than the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.job import ModelReference
from elasticdl.zoo import snapshot
from elasticdl.zoo.code_files import code_files
from elasticdl.zoo.snapshot import copy_zoo


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    folder = tmp_path / "zoo"
    folder.mkdir()
    return folder


def write(zoo: Path, name: str, content: bytes = b"x = 1\n") -> None:
    path = zoo / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def copied(zoo: Path) -> tuple[set[str], list[str]]:
    destination = zoo.parent / "copy"
    left_out = copy_zoo(zoo, destination)
    files = {str(p.relative_to(destination)) for p in destination.rglob("*") if p.is_file()}
    return files, left_out


def test_code_is_copied_byte_by_byte(zoo: Path) -> None:
    write(zoo, "a/b.py", "# ä\r\n".encode())
    write(zoo, "a/vocabulary.csv", b"1,2\n")

    files, left_out = copied(zoo)

    assert files == {"a/b.py", "a/vocabulary.csv"}
    assert left_out == []
    assert (zoo.parent / "copy/a/b.py").read_bytes() == "# ä\r\n".encode()


def test_generated_and_hidden_files_are_not_copied(zoo: Path) -> None:
    write(zoo, "m.py")
    write(zoo, ".git/config")
    write(zoo, ".env")
    write(zoo, "a/__pycache__/m.cpython-311.pyc")
    write(zoo, "train.log")
    write(zoo, "env/pyvenv.cfg")
    write(zoo, "env/lib/x.py")
    write(zoo, "out/trained_model.pb")
    write(zoo, "out/zoo/m.py")

    assert copied(zoo) == ({"m.py"}, [])


def test_an_excluded_folder_is_not_copied(zoo: Path) -> None:
    for name in ("m.py", "runs/first/config.yaml", "runs/mlflow.db", "a/runs/m.py"):
        write(zoo, name)

    left_out = copy_zoo(zoo, zoo.parent / "copy", without=zoo / "runs")

    copy = zoo.parent / "copy"
    assert {str(p.relative_to(copy)) for p in copy.rglob("*.*")} == {"m.py", "a/runs/m.py"}
    assert left_out == []


@pytest.mark.parametrize(
    "name", ["server.key", "ca.PEM", "store.p12", "id_rsa", "credentials.json"]
)
def test_private_keys_are_not_copied(zoo: Path, name: str) -> None:
    (zoo / name).write_text("secret")
    (zoo / "inner").mkdir()
    (zoo / "inner" / name).write_text("secret")

    copy_zoo(zoo, zoo.parent / "copy")

    assert not list((zoo.parent / "copy").rglob(name))


def test_a_large_file_is_omitted_and_named(zoo: Path) -> None:
    write(zoo, "m.py")
    write(zoo, "data/train.recordio", bytes(snapshot.MAX_FILE_BYTES + 1))
    write(zoo, "data/just.bin", bytes(snapshot.MAX_FILE_BYTES))

    assert copied(zoo) == ({"m.py", "data/just.bin"}, ["data/train.recordio"])


def test_data_files_do_not_displace_code(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_TOTAL_BYTES", 100)
    for number in range(5):
        write(zoo, f"a{number}.bin", bytes(40))
    write(zoo, "z/deep/m.py", bytes(30))

    assert copied(zoo) == ({"z/deep/m.py", "a0.bin"}, ["a1.bin", "a2.bin", "a3.bin", "a4.bin"])


def test_a_zoo_that_is_a_whole_disk_is_not_traversed(zoo, monkeypatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_FILES", 3)
    write(zoo, "m.py")
    for number in range(5):
        write(zoo, f"deep/{number}.txt")

    files, left_out = copied(zoo)

    assert "m.py" in files
    assert len(files) == 3
    assert left_out == ["all but the first 3 files"]


def test_the_copy_may_be_inside_the_zoo(zoo: Path) -> None:
    write(zoo, "m.py")
    destination = zoo / "out" / "zoo"

    for _ in range(2):
        copy_zoo(zoo, destination)

    assert [p.name for p in destination.rglob("*")] == ["m.py"]


def test_links_out_of_the_zoo_are_not_followed(zoo: Path) -> None:
    write(zoo, "m.py")
    (zoo / "secret.py").symlink_to("/etc/hostname")
    (zoo / "loop").symlink_to(zoo, target_is_directory=True)
    (zoo / "same.py").symlink_to(zoo / "m.py")

    assert copied(zoo) == ({"m.py", "same.py"}, [])


CODE = """
import helper, numpy, pathlib
import keras
LOG = "log.csv"
here = pathlib.Path(__file__).parent
words = (here / "words.csv").read_text()
tables = {key: here / f"table_{key}.npy" for key in "ab"}
pictures = sorted((here / "pictures").iterdir())

def callbacks():
    return [keras.callbacks.CSVLogger(LOG), keras.callbacks.CSVLogger("second.csv")]
"""


def test_data_is_copied_only_if_the_code_of_the_model_may_read_it(zoo: Path) -> None:
    write(zoo, "m.py", CODE.encode())
    write(zoo, "helper.py", b'open("inner.parquet")\n')
    write(zoo, "make.py", b'frame.to_parquet("train.parquet"); open("other.csv")\n')
    data = ["train.parquet", "other.csv", "table_a.csv", "photos/1.jpg", "log.csv", "second.csv"]
    read = ["words.csv", "table_a.npy", "pictures/1.jpg", "inner.parquet", "given.csv"]
    for name in (*data, *read, "note.txt"):
        write(zoo, name)
    model = ModelReference(str(zoo), "m", params={"file": "data/given.csv"})

    copy_zoo(zoo, zoo.parent / "copy", model=model)

    files = {str(p.relative_to(zoo.parent / "copy")) for p in (zoo.parent / "copy").rglob("*.*")}
    assert files == {"m.py", "helper.py", "make.py", "note.txt", *read}
    assert code_files(model, zoo).keys() == {"m.py", "helper.py", *read} - {"pictures/1.jpg"}
