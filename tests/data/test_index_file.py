"""An index file saves looking into files, and never gives a record that is not there."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticdl.data import csv, example, recordio, tfrecord
from elasticdl.data.data_index import DataIndex, index_of
from elasticdl.data.index_file import INDEX_FILE, write_index_files
from elasticdl.data.parquet import ParquetSource
from elasticdl.data.recordio import RecordIOSource
from elasticdl.data.sources import index_data, open_source
from elasticdl.data.stored_file import open_stored
from elasticdl.errors import DataError


def write(path: str, *values: int) -> None:
    if "://" not in path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    with recordio.Writer(path) as writer:
        for value in values:
            writer.write(example.encode({"x": np.int64([value])}))


def write_index(data: str) -> None:
    write_index_files(index_data(data, lambda done, total: None))


def values(data: str) -> list[int]:
    source = open_source(data)
    return [int(r["x"][0]) for r in source.read_records(0, source.num_records, None)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the folder `d` of the working folder, with three files and an index."""
    monkeypatch.chdir(tmp_path)
    write("d/a.recordio", 1, 2)
    write("d/b.recordio", 3)
    write("d/c.recordio", 4)
    write_index("d")
    return tmp_path / "d"


@pytest.fixture
def look_no_more(monkeypatch):
    """Return a function after which a test fails where a file is opened to be counted."""

    def refuse(uri):
        raise AssertionError(f"{uri} was looked into")

    def look_no_more():
        for reader in (recordio, tfrecord, csv):
            monkeypatch.setattr(reader, "_open", refuse)

    return look_no_more


@pytest.mark.parametrize("data", ["d", "d/", "./d", "d/*", "d/*.recordio", "d/a.recordio,d/[bc]*"])
@pytest.mark.usefixtures("folder")
def test_with_an_index_no_data_file_is_opened(data, look_no_more, caplog):
    look_no_more()

    assert values(data) == [1, 2, 3, 4]
    assert not caplog.messages


@pytest.mark.parametrize(("data", "expected"), [("d/[bc]*", [3, 4]), ("d/b.recordio", [3])])
@pytest.mark.usefixtures("folder")
def test_some_files_of_an_index_can_be_opened(data, expected, look_no_more):
    look_no_more()

    assert values(data) == expected


def test_the_working_folder_may_have_an_index(folder, monkeypatch, look_no_more):
    monkeypatch.chdir(folder)
    look_no_more()

    assert values("*.recordio") == values(".") == [1, 2, 3, 4]


def test_an_index_moves_with_its_folder(folder, look_no_more):
    look_no_more()
    folder.rename(folder.parent / "elsewhere")

    assert values("elsewhere") == [1, 2, 3, 4]


@pytest.mark.usefixtures("folder")
def test_each_folder_has_its_own_index(look_no_more):
    write("e/f.recordio", 5)
    write_index("d,e")
    assert Path("e", INDEX_FILE).exists()
    look_no_more()

    assert values("d,e") == [1, 2, 3, 4, 5]


def test_the_order_of_files_does_not_depend_on_indexes(tmp_path, monkeypatch, look_no_more):
    monkeypatch.chdir(tmp_path)
    for value, name in enumerate(("d/a", "d/e/x", "d/z")):
        write(f"{name}.recordio", value)
    before = values("d/*.recordio,d/e")
    write_index("d/*.recordio,d/e")
    look_no_more()

    assert values("d/*.recordio,d/e") == before == [0, 1, 2]


def test_files_without_an_index_are_opened(folder, monkeypatch):
    write("e/f.recordio", 5)
    looked_into, open_one = [], recordio._open
    monkeypatch.setattr(recordio, "_open", lambda uri: looked_into.append(uri) or open_one(uri))

    assert values("d,e") == [1, 2, 3, 4, 5]
    assert looked_into == ["e/f.recordio"]


def test_an_index_of_other_files_is_ignored(folder, caplog):
    write("d/other.rec", 9)
    (folder / INDEX_FILE).unlink()
    write_index("d/[abc].recordio")

    assert values("d/other.rec") == [9]
    assert not caplog.messages


@pytest.mark.parametrize(
    ("change", "expected", "reason"),
    [
        (lambda: write("d/d.recordio", 5), [1, 2, 3, 4, 5], "d.recordio is not in it"),
        (lambda: Path("d/b.recordio").unlink(), [1, 2, 4], "b.recordio was deleted"),
        (lambda: write("d/b.recordio", 7), [1, 2, 7, 4], "b.recordio has changed"),
        (lambda: os.utime("d/b.recordio"), [1, 2, 3, 4], "b.recordio has changed"),
    ],
)
def test_an_outdated_index_is_not_used(folder, change, expected, reason, caplog):
    change()

    assert values("d") == expected
    (message,) = caplog.messages
    assert message.startswith(f"Ignoring d/{INDEX_FILE}: {reason}. The files are counted again")
    assert message.endswith("to rebuild the index: elasticdl data index d")


def test_a_damaged_index_is_named(folder):
    data = bytearray((folder / INDEX_FILE).read_bytes())
    data[-1] ^= 1
    (folder / INDEX_FILE).write_bytes(data)

    with pytest.raises(DataError, match=f"^d/{INDEX_FILE}: damaged.* elasticdl data index d"):
        open_source("d")


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("make", "found"),
    [
        (Path.mkdir, "a folder"),
        (os.mkfifo, "a pipe"),
        (lambda path: path.symlink_to("/nowhere"), "No such file or directory"),
        (lambda path: path.symlink_to("/dev/zero"), "a device"),
    ],
)
def test_an_index_that_is_not_a_regular_file_is_never_opened(folder, make, found):
    (folder / INDEX_FILE).unlink()
    make(folder / INDEX_FILE)

    with pytest.raises(
        DataError, match=rf"^d/{INDEX_FILE} cannot be read: .*; found {found}\. .* data index d\."
    ):
        open_source("d")


def test_an_index_may_be_a_symbolic_link(folder, look_no_more):
    (folder / INDEX_FILE).rename(folder.parent / "index")
    (folder / INDEX_FILE).symlink_to(folder.parent / "index")
    look_no_more()

    assert values("d") == [1, 2, 3, 4]


def test_a_copy_of_recordio_files_with_other_times_is_read(folder):
    index = index_of(open_source("d"))
    for path in folder.glob("*.recordio"):
        os.utime(path, ns=(0, 0))

    assert len(RecordIOSource(index.uris, index).read_bytes(0, 4)) == 4


def test_a_changed_chunk_is_detected_despite_equal_time_and_size(folder):
    index = index_of(open_source("d"))
    before = Path("d/b.recordio").stat()
    write("d/b.recordio", 9)
    os.utime("d/b.recordio", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert Path("d/b.recordio").stat().st_size == before.st_size

    with pytest.raises(DataError, match=r"^d/b\.recordio"):
        RecordIOSource(index.uris, index).read_bytes(2, 3)


def test_files_in_memory_have_an_index(look_no_more):
    system = fsspec.filesystem("memory")
    write("memory://d/a.recordio", 1)
    write("memory://d/b.recordio", 2)
    write_index("memory://d")
    try:
        look_no_more()
        assert values("memory://d") == [1, 2]
    finally:
        system.store.clear()
        system.pseudo_dirs[:] = [""]


# --- on S3 --------------------------------------------------------------------------------------


@pytest.fixture
def bucket(s3):
    return f"s3://honest/{uuid.uuid4().hex}"


def forget_listings():
    """Do as another process, which has listed nothing yet."""
    fsspec.filesystem("s3").invalidate_cache()


def test_an_index_on_s3_is_used_until_a_file_changes(bucket, caplog):
    write(f"{bucket}/a.recordio", 1)
    write(f"{bucket}/b.recordio", 2)
    forget_listings()
    write_index(bucket)
    forget_listings()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recordio, "_open", None)
        assert values(bucket) == values(f"{bucket}/*.recordio") == [1, 2]

    write(f"{bucket}/b.recordio", 3)
    forget_listings()

    assert values(bucket) == [1, 3]
    assert f"Ignoring {bucket}/{INDEX_FILE}: b.recordio has changed." in caplog.messages[0]


def test_a_file_changed_on_s3_after_listing_is_detected(bucket):
    path = f"{bucket}/a.csv"
    fsspec.filesystem("s3").pipe(path, b"x\n1\n2\n")
    forget_listings()
    index = index_of(open_source(bucket))
    source = csv.CSVSource(index.uris, index)
    fsspec.filesystem("s3").pipe(path, b"x\n3\n4\n")

    with pytest.raises(DataError, match=r"a\.csv has changed since its records were counted"):
        source.read_bytes(0, 1)


def test_an_index_stays_valid_when_copied_with_its_times(folder, caplog):
    shutil.copytree("d", "with_times")
    shutil.copytree("d", "without", copy_function=shutil.copyfile)

    assert values("with_times") == values("without") == [1, 2, 3, 4]
    assert [message.split(": ")[0] for message in caplog.messages] == [
        f"Ignoring without/{INDEX_FILE}"
    ]


def replaced(path: Path, content: bytes) -> None:
    """Replace a file's content, and keep its time."""
    status = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_changed_header_is_detected_despite_equal_size_and_time(tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\n11,21\n12,22\n")
    write_index(str(path))
    replaced(path, b"b,a\n11,21\n12,22\n")

    with pytest.raises(DataError, match=r"the columns 'a', 'b', found 'b', 'a'.* data index"):
        open_source(str(path)).read_bytes(0, 2)


def test_a_replaced_parquet_file_of_equal_size_and_time_is_read(tmp_path) -> None:
    path = str(tmp_path / "t.parquet")
    pq.write_table(pa.table({"x": range(40)}), path, row_group_size=20)
    before = ParquetSource([path]).index()
    pq.write_table(pa.table({"x": range(50)}), path, row_group_size=20)
    now = open_stored(path)
    # What an index would say if the sizes and times were the same by accident.
    (entry,) = before.files
    entry = entry._replace(size_bytes=now.size_bytes, version=now.version)
    source = ParquetSource([path], DataIndex("parquet", (entry,)))

    with pytest.raises(DataError, match=r"expected 40 rows in 2 row groups, found 50 rows in 3"):
        source.read_bytes(0, 40)


def test_a_huge_index_is_refused_without_reading_it(folder) -> None:
    os.truncate(folder / INDEX_FILE, 20 << 30)

    with pytest.raises(DataError, match=r"found 21,474,836,480.* data index d"):
        open_source("d")
