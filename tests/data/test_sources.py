"""The data a user names is found, of one format, and what is not there is said with what is."""

from __future__ import annotations

import bz2
import gzip
import importlib
import os
import socket

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticdl.data import example, stored_file
from elasticdl.data.csv import CSVSource
from elasticdl.data.find_files import find_files
from elasticdl.data.formats import format_of
from elasticdl.data.parquet import ParquetSource
from elasticdl.data.recordio import RecordIOSource
from elasticdl.data.recordio import Writer as RecordIOWriter
from elasticdl.data.sources import open_source
from elasticdl.data.tfrecord import TFRecordSource, TFRecordWriter
from elasticdl.errors import CorruptDataError, DataError, MissingExtraError, NoDataError, UsageError

RECORD = example.encode({"x": np.float32([1])})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return an empty working folder, so that names can be short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def memory():
    """Return a function that writes a file in memory, and forget them all afterwards."""
    system = fsspec.filesystem("memory")

    def write(path, content=b""):
        system.makedirs(path.rpartition("/")[0], exist_ok=True)
        system.pipe(path, content)

    yield write
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def write_recordio(path, num_records=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    with RecordIOWriter(str(path)) as writer:
        for _ in range(num_records):
            writer.write(RECORD)
    return path


# --- which files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("d/b.csv", ["d/b.csv"]),
        ("d/*.csv", ["d/a.csv", "d/b.csv"]),
        ("d/?.csv,d/sub/*", ["d/a.csv", "d/b.csv", "d/sub/c.csv"]),
        (" d/b.csv , d/a.csv ,", ["d/a.csv", "d/b.csv"]),
        ("d/*.csv,d/a.csv", ["d/a.csv", "d/b.csv"]),
        ("d", ["d/a.csv", "d/b.csv"]),
        ("d/", ["d/a.csv", "d/b.csv"]),
        ("d/s*", ["d/sub/c.csv"]),
        ("d/**/*.csv", ["d/a.csv", "d/b.csv", "d/sub/c.csv"]),
        ("d/[b].csv", ["d/b.csv"]),
    ],
)
def test_names_expand_to_sorted_unique_files(folder, data, expected):
    touch(folder, "d/a.csv", "d/b.csv", "d/sub/c.csv", "d/notes.txt")

    assert find_files(data) == expected


def test_output_folders_of_jobs_are_not_suggested(folder):
    touch(folder, "pictures/a.csv", "pics/job.json")

    with pytest.raises(NoDataError, match=r"it contains pictures/\. Did you mean 'pictures/'\?$"):
        find_files("pictuers")


def test_a_file_uri_a_home_folder_and_an_absolute_path_are_local(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    touch(folder, "d/a.csv")

    assert find_files(f"file://{folder}/d/*.csv") == [f"file://{folder}/d/a.csv"]
    assert find_files("~/d/*.csv") == find_files(f"{folder}/d") == [f"{folder}/d/a.csv"]


def test_an_existing_name_with_commas_or_brackets_is_taken_literally(folder):
    touch(folder, "a,b.csv", "c[1].csv", "c1.csv")

    assert find_files("a,b.csv") == ["a,b.csv"]
    assert find_files("c[1].csv") == ["c[1].csv"]


@pytest.mark.parametrize(
    "hidden", [".a.csv", "_a.csv", "a.csv.tmp", "a.csv~", ".cache/a.csv", "_temporary/0/a.csv"]
)
def test_hidden_and_temporary_files_are_not_data(folder, hidden):
    touch(folder, f"d/{hidden}", "d/x.csv")

    for data in ("d", "d/*", "d/**", "d/**/*.csv*"):
        assert find_files(data) == ["d/x.csv"], data


def test_a_hidden_file_is_data_if_named_explicitly(folder):
    touch(folder, "d/_a.csv", ".d/a.csv")

    assert find_files("d/_a.csv") == find_files("d/_*.csv") == ["d/_a.csv"]
    assert find_files(".d/*.csv") == [".d/a.csv"]


def test_files_of_other_file_systems_keep_their_protocol(memory):
    memory("/bucket/b.csv")
    memory("/bucket/a.csv")
    memory("/bucket/.hidden.csv")

    expected = ["memory:///bucket/a.csv", "memory:///bucket/b.csv"]
    assert find_files("memory://bucket/*.csv") == expected
    assert find_files("memory://bucket") == expected
    assert find_files("memory://bucket/a.csv,memory://bucket/b.csv") == expected


def test_only_data_files_of_a_folder_are_used(folder):
    write_recordio(folder / "d/a.recordio")
    (folder / "d/README.md").write_text("Where this data is from.")
    (folder / "d/sub").mkdir()

    assert find_files("d") == ["d/a.recordio"]


def test_files_without_extensions_are_recognized_by_their_first_bytes(folder):
    write_recordio(folder / "d/train-00000-of-00001")
    (folder / "d/LICENSE").write_text("Free.")

    assert find_files("d") == ["d/train-00000-of-00001"]


# --- which format --------------------------------------------------------------------------------


def make_recordio(path):
    write_recordio(path)


def make_tfrecord(path):
    with TFRecordWriter(str(path)) as writer:
        writer.write(RECORD)


def make_tfrecord_gz(path):
    make_tfrecord(path)
    path.write_bytes(gzip.compress(path.read_bytes()))


def make_csv(path):
    path.write_text("x\n1\n")


def make_parquet(path):
    pq.write_table(pa.table({"x": [1]}), path)


@pytest.mark.parametrize(
    ("name", "make", "reader"),
    [
        ("a.recordio", make_recordio, RecordIOSource),
        ("a.REC", make_recordio, RecordIOSource),
        ("a", make_recordio, RecordIOSource),
        ("a.tfrecord", make_tfrecord, TFRecordSource),
        ("a.tfrecords", make_tfrecord, TFRecordSource),
        ("a.tfrecord-00000-of-00001", make_tfrecord, TFRecordSource),
        ("a.tfrecords.gz", make_tfrecord_gz, TFRecordSource),
        ("a.gz", make_tfrecord_gz, TFRecordSource),
        ("a.csv", make_csv, CSVSource),
        ("a.parquet", make_parquet, ParquetSource),
        ("a.c000", make_parquet, ParquetSource),
    ],
)
def test_the_format_is_detected_by_name_or_first_bytes(folder, name, make, reader):
    make(folder / name)

    source = open_source(name)

    assert isinstance(source, reader)
    assert source.num_records == 1
    assert source.files[0].uri == name


@pytest.mark.parametrize("content", [b"hello", b"\x1f\x8bnot gzip", bytes(40)])
def test_an_unknown_format_is_refused(folder, content):
    (folder / "a.dat").write_bytes(content)

    assert format_of("a.dat") is None
    with pytest.raises(DataError, match=r"a\.dat has an unknown format: .* \.recordio"):
        open_source("a.dat")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a.dat", r"a\.dat is empty: it has no bytes"),
        ("a.csv", r"a\.csv is empty; .* separated by commas"),
        ("a.tsv", r"a\.tsv is empty; .* separated by tabs"),
        ("a.tsv-export.csv", r"is empty; .* separated by commas"),
        ("a.parquet", r"a\.parquet: .*found an empty file"),
    ],
)
def test_an_empty_file_is_called_empty(folder, name, words):
    (folder / name).write_bytes(b"")

    with pytest.raises(DataError, match=words):
        open_source(name)


def test_a_json_file_is_refused_with_how_to_pass_its_table(folder):
    (folder / "a").mkdir()
    (folder / "a" / "b.jsonl").write_text('{"x": 1}\n')

    for name in ("a/b.jsonl", "a"):
        with pytest.raises(DataError, match=r'data=pandas\.read_json\(".*b\.jsonl", lines=True\)'):
            open_source(name)


def test_an_error_never_shows_the_content_of_other_files(folder):
    (folder / "key").write_bytes(b"secret:x:0:0")

    with pytest.raises(DataError, match="an unknown format") as raised:
        open_source("key")

    assert "secret" not in str(raised.value)


def test_a_csv_not_compressed_with_gzip_is_refused_with_advice(folder):
    (folder / "a.csv.bz2").write_bytes(bz2.compress(b"x\n1\n"))

    with pytest.raises(DataError, match="not supported. Decompress it, compress it with gzip, or"):
        open_source("a.csv.bz2")


def test_files_of_two_formats_are_not_read_together(folder):
    make_csv(folder / "a.csv")
    write_recordio(folder / "b.recordio")

    with pytest.raises(
        DataError,
        match=r"2 different formats: a\.csv is csv, b\.recordio is recordio\. Pass files of one",
    ):
        open_source("*")


# --- what is not there ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            "train/*.rec",
            r"'train/\*\.rec'\. The folder train exists; it contains a\.recordio, b\.txt",
        ),
        ("train/b.recordio", r"Did you mean 'a\.recordio', 'b\.txt'|Did you mean 'a\.recordio'"),
        ("trian/*.csv", r"the folder \. has no 'trian' in it; did you mean 'train'\?"),
        (
            "train/x/y/*.csv",
            r"the folder train has no 'x' in it \(it contains a\.recordio, b\.txt\)",
        ),
        ("/nonsense/*.csv", "the folder / has no 'nonsense' in it"),
        ("*.csv", r"No file matches '\*\.csv'\. The folder \. exists; it contains empty/, many/"),
        ("empty/*", "The folder empty exists; it is empty"),
        ("empty", r"The folder empty contains no data files \(csv, .*\)\. It is empty"),
        ("texts", r"The folder texts contains no data files .* It contains c\.txt"),
        ("many", r"It contains the folders test/, train/: choose one of them"),
        ("", "The name of the data is empty"),
        (" , ", "The name of the data is empty"),
        ("train/a.recordio,nothing.csv", r"No file matches 'nothing\.csv'"),
    ],
)
def test_a_missing_name_is_reported_with_existing_ones(folder, data, message):
    write_recordio(folder / "train/a.recordio")
    touch(folder, "train/b.txt", "texts/c.txt", "many/train/a.csv", "many/test/a.csv")
    (folder / "empty").mkdir()

    with pytest.raises(NoDataError, match=message):
        open_source(data)


@pytest.mark.parametrize(
    ("files", "advice"),
    [
        (
            ("data-00000-of-00001.arrow", "state.json", "dataset_info.json"),
            r'data=datasets\.load_from_disk\("saved"\)\.$',
        ),
        (
            ("dataset_dict.json", "train/state.json"),
            r'data=datasets\.load_from_disk\("saved"\)\["train"\]\.$',
        ),
    ],
)
def test_a_folder_saved_by_hugging_face_is_named_with_how_to_load_it(folder, files, advice):
    touch(folder, *(f"saved/{name}" for name in files))

    with pytest.raises(NoDataError, match=f"written by save_to_disk.*{advice}"):
        open_source("saved")


def test_a_missing_remote_name_is_reported_with_existing_ones(memory):
    memory("/bucket/train/a.csv")

    with pytest.raises(NoDataError, match=r"folder /bucket/train exists; it contains a\.csv"):
        open_source("memory://bucket/train/*.recordio")


@pytest.mark.parametrize("num_files", [1, 7])
def test_files_without_a_record_are_refused(folder, num_files):
    for i in range(num_files):
        write_recordio(folder / f"d/{i}.recordio", num_records=0)

    with pytest.raises(NoDataError, match=rf"d: {num_files} files? \(d/0\.recordio.*no records in"):
        open_source("d")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_an_unreadable_folder_is_refused_by_name(tmp_path):
    (tmp_path / "closed" / "inner").mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    nobody = 65534
    os.seteuid(nobody)
    try:
        # The folders above belong to root as well.
        with pytest.raises(DataError, match="cannot be read: Permission denied. Give this user"):
            find_files(str(tmp_path / "closed" / "inner"))
    finally:
        os.seteuid(0)


def test_an_impossible_file_name_is_refused(folder):
    with pytest.raises(DataError, match="cannot be read: File name too long"):
        find_files("x" * 300)


def test_a_list_of_names_may_exceed_the_length_of_a_file_name(folder):
    names = [f"{number:0100d}.csv" for number in range(50)]
    for name in names:
        (folder / name).touch()

    assert find_files(",".join(names)) == names


def test_an_unknown_protocol_is_refused():
    with pytest.raises(UsageError, match="nosuch://bucket/x cannot be opened"):
        find_files("nosuch://bucket/x")


def test_a_missing_protocol_package_is_named_with_its_extra(monkeypatch):
    registry = importlib.import_module("fsspec.registry")
    monkeypatch.setitem(registry.known_implementations, "s3", {"class": "no_s3fs.X", "err": "no"})
    monkeypatch.delitem(registry._registry, "s3", raising=False)

    with pytest.raises(MissingExtraError, match=r"pip install 'elasticdl\[s3\]'"):
        open_source("s3://bucket/*.recordio")


def test_a_folder_with_unfinished_preparation_is_refused(folder):
    write_recordio(folder / "d/part-00000-of-00002.recordio")
    touch(folder, "d/.incomplete")

    for data in ("d", "d/*.recordio"):
        with pytest.raises(
            DataError, match="The data in d is not complete: .*Run the same command"
        ):
            open_source(data)


def test_opening_recordio_does_not_import_pyarrow(folder, run_python):
    path = write_recordio(folder / "a.recordio")

    run_python(
        "import sys; from elasticdl.data.sources import open_source\n"
        f"open_source({str(path)!r}).read_records(0, 1, None)\n"
        "assert 'pyarrow' not in sys.modules and 'fsspec' not in sys.modules"
    )


@pytest.mark.parametrize("file_format", ["recordio", "tfrecord"])
def test_refusing_a_file_does_not_quote_its_content(tmp_path, file_format):
    path = tmp_path / f"secret.{file_format}"
    path.write_text("root:x:0:0:the first words of a file of another kind, which are secret\n")

    with pytest.raises(CorruptDataError) as raised:
        open_source(str(path))

    said = str(raised.value).replace(str(path), "")
    assert "root" not in said
    assert b"root".hex() not in said.replace(" ", "")
    assert b"toor".hex() not in said


def test_an_unreachable_server_is_reported_with_its_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    with pytest.raises(DataError, match=rf"http://127.0.0.1:{port}/x.csv cannot be accessed: .*"):
        find_files(f"http://127.0.0.1:{port}/x.csv")


def test_waiting_for_a_silent_server_times_out(monkeypatch):
    monkeypatch.setattr(stored_file, "SILENCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}/x.csv"

        with pytest.raises(DataError, match=r"cannot be accessed: no response for 0\.2 s"):
            find_files(uri)
