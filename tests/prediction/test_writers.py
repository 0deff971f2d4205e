"""Predictions are in order, whole, the same whoever wrote them, and replace nothing else."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import fsspec
import ml_dtypes
import numpy as np
import pyarrow.parquet
import pytest

from elasticdl.data.recordio import RecordIOSource, Writer
from elasticdl.errors import (
    DefinitionError,
    OutputBusyError,
    OutputError,
    OutputTakenError,
    UsageError,
)
from elasticdl.prediction import target as target_module
from elasticdl.prediction.writers import open_writer

FORMATS = ["recordio", "parquet", "csv"]


@pytest.fixture(params=["local", "memory"])
def place(request, tmp_path) -> str:
    """Return where outputs may be put: on this machine, and on a store."""
    return str(tmp_path) if request.param == "local" else f"memory://{uuid.uuid4().hex}/p"


def keys(start: int, stop: int) -> list[str]:
    return [f"a:{i}" for i in range(start, stop)]


def outputs(start: int, stop: int) -> np.ndarray:
    return np.stack([np.arange(start, stop), -np.arange(start, stop)], axis=1).astype(np.float32)


def predict(output: str, file_format=None, num_records=5, batch=2, **options) -> None:
    with open_writer(output, file_format, **options) as writer:
        for start in range(0, num_records, batch):
            stop = min(start + batch, num_records)
            writer.write(start, keys(start, stop), outputs(start, stop))


def names_in(uri: str) -> list[str]:
    """Return all names in a folder, hidden ones too."""
    fs, path = fsspec.core.url_to_fs(uri)
    return sorted(Path(name).name for name in fs.ls(path, detail=False))


def rows_of(uri: str, file_format: str = "recordio") -> list[tuple[str, list[float]]]:
    """Return key and output of each row, read by an independent reader where there is one."""
    if file_format == "recordio":
        source = RecordIOSource([uri])
        records = source.read_records(0, source.num_records, None)
        return [(row["key"][0].decode(), row["output"].tolist()) for row in records]
    with fsspec.open(uri, "rb") as file:
        if file_format == "parquet":
            table = pyarrow.parquet.read_table(file)
            return list(zip(table["key"].to_pylist(), table["output"].to_pylist(), strict=True))
        lines = list(csv.reader(file.read().decode().splitlines()))
    assert lines[0] == ["key", "output_0", "output_1"]
    return [(line[0], [float(value) for value in line[1:]]) for line in lines[1:]]


EXPECTED = [(f"a:{i}", [i, -i]) for i in range(5)]


# --- What is written --------------------------------------------------------------------------


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_folder_has_rows_in_order_with_their_keys(place, file_format) -> None:
    predict(f"{place}/out", file_format)

    assert names_in(place) == ["out"]
    assert names_in(f"{place}/out") == ["_SUCCESS", f"part-00000.{file_format}"]
    assert rows_of(f"{place}/out/part-00000.{file_format}", file_format) == EXPECTED


@pytest.mark.parametrize("file_format", FORMATS)
def test_parts_do_not_depend_on_batches(place, file_format) -> None:
    predict(f"{place}/out", file_format, records_per_part=2, batch=3)

    rows = [rows_of(f"{place}/out/part-0000{part}.{file_format}", file_format) for part in range(3)]
    assert rows == [EXPECTED[:2], EXPECTED[2:4], EXPECTED[4:]]


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_name_with_an_extension_is_one_file(place, file_format) -> None:
    for records_per_part in (5, 2):
        name = f"{records_per_part}.{file_format}"
        predict(f"{place}/{name}", None, records_per_part=records_per_part)
        assert rows_of(f"{place}/{name}", file_format) == EXPECTED

    assert names_in(place) == [f"2.{file_format}", f"5.{file_format}"]
    one, other = (fsspec.open(f"{place}/{n}.{file_format}").open().read() for n in (5, 2))
    assert one == other


@pytest.mark.parametrize("file_format", FORMATS)
def test_no_records_give_an_empty_file_or_folder(place, file_format) -> None:
    predict(f"{place}/out", file_format, num_records=0)
    for _ in range(2):
        predict(f"{place}/out.{file_format}", None, num_records=0)

    assert names_in(f"{place}/out") == ["_SUCCESS"]
    with fsspec.open(f"{place}/out.{file_format}", "rb") as file:
        if file_format == "csv":
            assert file.read() == b"key\n"
        elif file_format == "parquet":
            assert pyarrow.parquet.read_table(file).to_pydict() == {"key": []}
        else:
            assert rows_of(f"{place}/out.recordio") == []


def test_a_joined_parquet_file_has_row_groups_of_one_size(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("elasticdl.prediction.parquet._JOINED_ROWS", 3)

    predict(str(tmp_path / "o.parquet"), None, num_records=8, records_per_part=2)

    metadata = pyarrow.parquet.read_metadata(tmp_path / "o.parquet")
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [3, 3, 2]


def test_a_name_with_a_line_break_is_one_column_of_a_joined_csv_file(tmp_path) -> None:
    with open_writer(str(tmp_path / "o.csv"), records_per_part=1) as writer:
        writer.write(0, keys(0, 2), {"a\nb": np.float32([1, 2])})

    with (tmp_path / "o.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["key", "a\nb"], ["a:0", "1.0"], ["a:1", "2.0"]]


def test_the_manifest_describes_the_parts(tmp_path) -> None:
    predict(str(tmp_path / "out"), "csv", records_per_part=3)
    manifest = json.loads((tmp_path / "out" / "_SUCCESS").read_text())
    first = (tmp_path / "out" / "part-00000.csv").read_bytes()

    assert manifest["fields"] == [{"name": "output", "dtype": "float32", "shape": [2]}]
    assert (manifest["format"], manifest["num_records"]) == ("csv", 5)
    assert [part["num_records"] for part in manifest["parts"]] == [3, 2]
    assert manifest["parts"][0] == {
        "name": "part-00000.csv",
        "num_records": 3,
        "num_bytes": len(first),
        "sha256": hashlib.sha256(first).hexdigest(),
    }


def write_one(output: str, file_format: str, tree) -> None:
    with open_writer(output, file_format) as writer:
        writer.write(0, ["a:0", "a:1"], tree)


TREE = {
    "probs": np.float32([[[0.1, 0.2]], [[0.3, 0.4]]]),
    "price": np.float32([[1.5], [2.5]]),
    "class": np.int64([-1, 7]),
    "half": np.array([1.5, 2.5], ml_dtypes.bfloat16),
    "exact": np.float64([0.1, 0.2]),
    "yes": np.array([True, False]),
    "name": np.array(["ä,b", 'c"d'], object),
    "raw": np.array([b"x", b"y\n"], object),
}


def test_every_output_is_a_feature_of_the_example(tmp_path) -> None:
    write_one(str(tmp_path / "o.recordio"), "recordio", TREE)
    row = RecordIOSource([str(tmp_path / "o.recordio")]).read_records(0, 2, None)[1]

    assert set(row) == {"key", *TREE}
    np.testing.assert_array_equal(row["probs"], np.float32([0.3, 0.4]))
    assert (row["class"].tolist(), row["yes"].tolist()) == ([7], [0])
    assert (row["half"].tolist(), row["exact"].dtype) == ([2.5], np.float32)
    assert (row["name"][0], row["raw"][0]) == (b'c"d', b"y\n")


@pytest.mark.parametrize("name", ["o", "o.csv"])
def test_a_writer_reports_what_it_will_replace(tmp_path, name) -> None:
    output = str(tmp_path / name)

    for replaced in ("", output):
        with open_writer(output, "csv") as writer:
            assert writer.replaced == replaced
            writer.write(0, ["a:0"], np.float32([1]))


def test_every_output_is_a_typed_column(tmp_path) -> None:
    write_one(str(tmp_path / "o"), "parquet", TREE)
    table = pyarrow.parquet.read_table(tmp_path / "o" / "part-00000.parquet")

    assert {name: str(table.schema.field(name).type) for name in table.column_names} == {
        "key": "string",
        "probs": "fixed_size_list<element: fixed_size_list<element: float>[2]>[1]",
        "price": "float",
        "class": "int64",
        "half": "float",
        "exact": "double",
        "yes": "bool",
        "name": "binary",
        "raw": "binary",
    }
    assert table["probs"].to_pylist()[1] == TREE["probs"][1].tolist()
    assert table["class"].to_pylist() == [-1, 7]
    assert table["price"].to_pylist() == [1.5, 2.5]


def test_values_survive_a_csv_round_trip(tmp_path) -> None:
    write_one(str(tmp_path / "o"), "csv", TREE)
    with (tmp_path / "o" / "part-00000.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))

    assert list(rows[0]) == [
        *("key", "probs_0", "probs_1", "price", "class", "half", "exact", "yes", "name", "raw")
    ]
    assert np.float32(rows[1]["probs_1"]) == np.float32(0.4)
    assert rows[0]["probs_0"] == "0.1"
    assert float(rows[0]["exact"]) == 0.1
    assert (rows[0]["name"], rows[1]["name"], rows[1]["raw"]) == ("ä,b", 'c"d', "y\n")


def test_fixed_width_texts_are_strings_in_parquet(tmp_path) -> None:
    write_one(str(tmp_path / "o"), "parquet", np.array(["a", "bc"]))
    table = pyarrow.parquet.read_table(tmp_path / "o" / "part-00000.parquet")

    assert table["output"].to_pylist() == ["a", "bc"]


@pytest.mark.parametrize("file_format", FORMATS)
def test_an_output_without_values_is_written(tmp_path, file_format) -> None:
    tree = {"none": np.zeros((2, 0), np.float32), "one": np.zeros((2, 1), np.float32)}

    write_one(str(tmp_path / "o"), file_format, tree)

    assert names_in(f"{tmp_path}/o") == ["_SUCCESS", f"part-00000.{file_format}"]


def test_outputs_that_would_share_a_csv_column_are_refused(tmp_path) -> None:
    tree = {"a": np.zeros((2, 2)), "a_0": np.zeros(2)}

    with pytest.raises(DefinitionError, match="CSV column 'a_0'"):
        write_one(str(tmp_path / "o"), "csv", tree)


def test_bytes_that_are_not_text_are_refused_by_csv(tmp_path) -> None:
    with pytest.raises(DefinitionError, match="not UTF-8"):
        write_one(str(tmp_path / "o"), "csv", np.array([b"\xff", b""], object))


def test_an_integer_too_large_for_an_example_is_refused(tmp_path) -> None:
    with pytest.raises(DefinitionError, match="18446744073709551615"):
        write_one(str(tmp_path / "o"), "recordio", np.array([1, 2**64 - 1], np.uint64))


@pytest.mark.parametrize(
    "second", [np.zeros((1, 3), np.float32), np.zeros((1, 2), np.float64), {"b": outputs(0, 1)}]
)
def test_outputs_that_change_between_batches_are_refused(tmp_path, second) -> None:
    writer = open_writer(str(tmp_path / "o"))
    writer.write(0, keys(0, 1), outputs(0, 1))

    with (
        writer,
        pytest.raises(DefinitionError, match=r"changed from output: float32\[2\] to .* a:1"),
    ):
        writer.write(1, keys(1, 2), second)


def test_records_cannot_be_skipped(tmp_path) -> None:
    with open_writer(str(tmp_path / "o")) as writer:
        writer.write(0, keys(0, 2), outputs(0, 2))
        with pytest.raises(ValueError, match="Record 2 comes next, not 3"):
            writer.write(3, keys(3, 4), outputs(3, 4))


# --- Parts written by several -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["out", "out.recordio"])
def test_parts_may_be_written_in_any_order_and_twice(place, name) -> None:
    predict(f"{place}/in_order_{name}", records_per_part=2)
    with open_writer(f"{place}/{name}", records_per_part=2) as writer:
        for index in (2, 0, 1, 0):
            start, stop = 2 * index, min(2 * index + 2, 5)
            with writer.part(index) as part:
                part.write(keys(start, stop), outputs(start, stop))

    if name == "out":
        for part in ("_SUCCESS", "part-00000.recordio", "part-00002.recordio"):
            same = fsspec.open(f"{place}/in_order_out/{part}").open().read()
            assert fsspec.open(f"{place}/out/{part}").open().read() == same
    else:
        assert rows_of(f"{place}/{name}") == EXPECTED


def test_a_failed_part_is_not_published(place) -> None:
    writer = open_writer(f"{place}/out", records_per_part=2)
    with suppress(DefinitionError), writer.part(0) as part:
        part.write(keys(0, 1), outputs(0, 1))
        part.write(keys(1, 2), outputs(1, 3))

    assert writer.parts.described() == []
    writer.discard()
    assert not fsspec.core.url_to_fs(place)[0].exists(f"{place}/out")


def test_a_part_contains_exactly_its_range(place) -> None:
    with (
        open_writer(f"{place}/out", records_per_part=2) as writer,
        pytest.raises(ValueError, match="cannot hold"),
        writer.part(0) as part,
    ):
        part.write(keys(0, 3), outputs(0, 3))


def test_a_missing_part_is_named_and_nothing_is_published(place) -> None:
    writer = open_writer(f"{place}/out", records_per_part=2)
    for index in (0, 2):
        with writer.part(index) as part:
            part.write(keys(0, 2), outputs(0, 2))

    with pytest.raises(OutputError, match=r"part-00001\.recordio was not written"):
        writer.close()

    assert names_in(place) == []


def test_a_part_with_too_few_records_is_named(place) -> None:
    writer = open_writer(f"{place}/out", records_per_part=2)
    for index in (0, 1):
        with writer.part(index) as part:
            part.write(keys(0, 1), outputs(0, 1))

    with pytest.raises(OutputError, match="has 1 records and should have 2"):
        writer.close()


def test_parts_of_different_models_are_refused(place) -> None:
    writer = open_writer(f"{place}/out", records_per_part=2)
    for index, tree in enumerate([outputs(0, 2), {"b": outputs(0, 2)}]):
        with writer.part(index) as part:
            part.write(keys(0, 2), tree)

    with pytest.raises(DefinitionError, match=r"part-00001\.recordio are not those"):
        writer.close()


# --- Whole or not there -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["out", *(f"out.{each}" for each in FORMATS)])
def test_nothing_is_published_before_the_end(place, name) -> None:
    with open_writer(f"{place}/{name}", records_per_part=1) as writer:
        for start in range(3):
            writer.write(start, keys(start, start + 1), outputs(start, start + 1))
        assert name not in names_in(place)

    assert names_in(place) == [name]


def fail_on_the_way(output: str, **options) -> None:
    with open_writer(output, **options) as writer:
        writer.write(0, keys(0, 3), outputs(0, 3))
        raise KeyError


@pytest.mark.parametrize("name", ["out", *(f"out.{each}" for each in FORMATS)])
def test_a_failed_prediction_leaves_nothing(place, name) -> None:
    with pytest.raises(KeyError):
        fail_on_the_way(f"{place}/{name}", records_per_part=2)

    assert names_in(place) == []


@pytest.mark.parametrize("name", ["out", "out.recordio"])
def test_an_earlier_prediction_is_kept_until_a_new_one_is_complete(place, name) -> None:
    predict(f"{place}/{name}", records_per_part=2)
    with pytest.raises(KeyError):
        fail_on_the_way(f"{place}/{name}", records_per_part=1)

    first = f"{place}/{name}" + ("/part-00000.recordio" if name == "out" else "")
    assert rows_of(first) == EXPECTED[: 2 if name == "out" else 5]

    predict(f"{place}/{name}", num_records=1)
    assert rows_of(first) == EXPECTED[:1]
    if name == "out":
        assert names_in(f"{place}/out") == ["_SUCCESS", "part-00000.recordio"]


def test_closing_twice_publishes_once(tmp_path) -> None:
    writer = open_writer(str(tmp_path / "o"))
    writer.write(0, keys(0, 1), outputs(0, 1))
    writer.close()
    writer.close()

    assert names_in(f"{tmp_path}/o") == ["_SUCCESS", "part-00000.recordio"]
    with pytest.raises(ValueError, match="closed"):
        writer.write(1, keys(1, 2), outputs(1, 2))


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path, file_format) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    noise = np.random.default_rng(0).normal(size=(2000, 10))
    try:
        with pytest.raises(OutputError), open_writer(str(tmp_path / "o"), file_format) as writer:
            writer.write(0, keys(0, 2000), noise)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert names_in(str(tmp_path)) == []


WRITE_FOREVER = """
import sys
import numpy as np
from elasticdl.prediction.writers import open_writer

with open_writer(sys.argv[1], records_per_part=1) as writer:
    print("open", flush=True)
    for start in range(10**9):
        writer.write(start, [f"a:{start}"], np.zeros((1, 2), np.float32))
"""


def write_elsewhere(output: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WRITE_FOREVER, output]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert writer.stdout.readline() == b"open\n"
    return writer


@pytest.mark.parametrize("name", ["out", "out.recordio"])
def test_leftovers_of_a_killed_prediction_are_removed_by_the_next(tmp_path, name) -> None:
    writer = write_elsewhere(str(tmp_path / name))
    with pytest.raises(OutputBusyError, match=rf"{name}: process {writer.pid} on "):
        open_writer(str(tmp_path / name))
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    assert name not in names_in(str(tmp_path))

    predict(str(tmp_path / name))

    assert names_in(str(tmp_path)) == [name]


def test_two_outputs_in_one_folder_do_not_interfere(place) -> None:
    with open_writer(f"{place}/a") as writer:
        predict(f"{place}/b")
        writer.write(0, keys(0, 1), outputs(0, 1))

    assert names_in(place) == ["a", "b"]


# --- What is not replaced ---------------------------------------------------------------------


def test_an_unrelated_folder_is_refused(place) -> None:
    fsspec.open(f"{place}/out/thesis.tex", "wb", auto_mkdir=True).open().close()

    with pytest.raises(OutputTakenError, match=r"out: holds thesis\.tex.*--output"):
        open_writer(f"{place}/out")

    assert names_in(place) == ["out"]


def test_a_prediction_with_added_files_is_refused(place) -> None:
    predict(f"{place}/out")
    fsspec.open(f"{place}/out/notes.txt", "wb").open().close()

    with pytest.raises(OutputTakenError, match=r"notes\.txt"):
        open_writer(f"{place}/out")


@pytest.mark.parametrize("manifest", [None, b"", b"{}", b"[]"])
def test_parts_of_another_program_are_refused(place, manifest) -> None:
    predict(f"{place}/out")
    fs = fsspec.core.url_to_fs(place)[0]
    fs.rm(f"{place}/out/_SUCCESS")
    if manifest is not None:
        fs.pipe_file(f"{place}/out/_SUCCESS", manifest)

    with pytest.raises(OutputTakenError, match="_SUCCESS"):
        open_writer(f"{place}/out")


@pytest.mark.parametrize("key", [None, b"no number", b"", b"a:1 b"])
def test_a_file_of_training_data_is_not_overwritten(place, key) -> None:
    from elasticdl.data.example import encode

    fsspec.core.url_to_fs(place)[0].makedirs(place, exist_ok=True)
    with Writer(f"{place}/train.recordio") as writer:
        label = {"label": np.int64([1])}
        writer.write(encode(label if key is None else {**label, "key": [key]}))

    with pytest.raises(OutputTakenError, match=r"train\.recordio: holds records that are not pred"):
        open_writer(f"{place}/train.recordio")

    assert names_in(place) == ["train.recordio"]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("o.recordio", b"precious text", "holds no predictions"),
        ("o.parquet", b"precious text", "holds no predictions"),
        ("o.csv", b"precious\xfftext", "holds no predictions"),
        ("o.csv", b"name,age\nAda,36\n", "holds records that are not predictions"),
        ("o.csv", b"key,age\nAda,36\n", "holds records that are not predictions"),
    ],
)
def test_an_unrelated_file_is_not_overwritten(tmp_path, name, content, why) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(OutputTakenError, match=why):
        open_writer(str(tmp_path / name))
    assert (tmp_path / name).read_bytes() == content


def test_a_users_parquet_table_is_not_overwritten(place) -> None:
    fsspec.core.url_to_fs(place)[0].makedirs(place, exist_ok=True)
    for number, columns in enumerate([{"age": [36]}, {"key": ["Ada"]}, {"key": [7]}]):
        with fsspec.open(f"{place}/{number}.parquet", "wb") as file:
            pyarrow.parquet.write_table(pyarrow.table(columns), file)

        with pytest.raises(OutputTakenError, match="holds records that are not predictions"):
            open_writer(f"{place}/{number}.parquet")


def test_files_and_folders_are_not_confused(tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder.recordio").mkdir()

    with pytest.raises(OutputError, match="is a file, and predictions would be a folder"):
        open_writer(str(tmp_path / "file"))
    with pytest.raises(OutputError, match="is a folder, and predictions would be a file"):
        open_writer(str(tmp_path / "folder.recordio"))


def test_a_name_that_contradicts_the_format_is_a_usage_error(tmp_path) -> None:
    with pytest.raises(UsageError, match="is a recordio file by its name, but --format=csv"):
        open_writer(str(tmp_path / "o.recordio"), "csv")


# --- Places a folder cannot be renamed to -----------------------------------------------------


@pytest.fixture
def mounted(tmp_path, monkeypatch) -> Path:
    """Return a folder that cannot be renamed, as one that is mounted into a container."""
    path = tmp_path / "mounted"
    path.mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda self: self == path)
    return path


def test_a_mounted_folder_is_kept_and_filled(mounted) -> None:
    before = mounted.stat().st_ino
    for num_records in (5, 3):
        predict(str(mounted), num_records=num_records, records_per_part=2)

    assert names_in(str(mounted)) == ["_SUCCESS", "part-00000.recordio", "part-00001.recordio"]
    assert names_in(str(mounted.parent)) == ["mounted"]
    assert mounted.stat().st_ino == before


def test_a_prediction_interrupted_during_publishing_is_replaced(mounted, monkeypatch) -> None:
    predict(str(mounted), records_per_part=2)
    with monkeypatch.context() as patch:
        patch.setattr(target_module, "_manifest", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            predict(str(mounted), records_per_part=1)
    assert "_SUCCESS" not in names_in(str(mounted))

    predict(str(mounted), records_per_part=3)

    assert names_in(str(mounted)) == ["_SUCCESS", "part-00000.recordio", "part-00001.recordio"]


def test_a_whole_bucket_can_be_the_output() -> None:
    bucket = f"memory://{uuid.uuid4().hex}"
    predict(bucket)

    assert names_in(bucket) == ["_SUCCESS", "part-00000.recordio"]
