"""`data split` copies each record into the files of one part, and leaves nothing half-done."""

from __future__ import annotations

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticdl.data import example, recordio, split_files, tfrecord
from elasticdl.data.sources import open_source
from elasticdl.data.split_parts import parse_parts
from elasticdl.errors import OutputTakenError, UsageError

PARTS = parse_parts("train=0.75,test=0.25")
ROWS = [(i, "cat" if i % 5 else "dog") for i in range(40)]


def write_recordio(path, rows):
    with recordio.Writer(str(path)) as writer:
        for row in rows:
            writer.write(encoded(row))


def write_tfrecord(path, rows):
    with tfrecord.TFRecordWriter(str(path)) as writer:
        for row in rows:
            writer.write(encoded(row))


def encoded(row):
    return example.encode({"number": np.int64([row[0]]), "kind": [row[1].encode()]})


def write_csv(path, rows):
    path.write_text("".join(f"{number},{kind}\n" for number, kind in [("number", "kind"), *rows]))


def write_parquet(path, rows):
    table = pa.table(
        {
            "number": [row[0] for row in rows],
            "kind": pa.array([row[1] for row in rows]).dictionary_encode(),
        }
    )
    pq.write_table(table, path, row_group_size=4)


FORMATS = {
    "recordio": write_recordio,
    "tfrecord": write_tfrecord,
    "csv": write_csv,
    "parquet": write_parquet,
}


@pytest.fixture(params=FORMATS)
def data(request, tmp_path):
    """Return a folder with two files of a format."""
    (tmp_path / "data").mkdir()
    FORMATS[request.param](tmp_path / "data" / f"a.{request.param}", ROWS[:15])
    FORMATS[request.param](tmp_path / "data" / f"b.{request.param}", ROWS[15:])
    return tmp_path / "data"


def split(data, output, **more):
    return split_files.split_files(
        str(data), str(output), PARTS, **{"on_progress": lambda *_: None, **more}
    )


def rows_in(folder):
    source = open_source(str(folder))
    records = source.read_records(0, source.num_records, None)
    return [(int(record["number"][0]), record["kind"][0].decode()) for record in records]


def test_each_record_is_in_one_part_in_its_order(data, tmp_path):
    written = split(data, tmp_path / "out")

    train, test = (rows_in(tmp_path / "out" / name) for name in ("train", "test"))
    assert sorted(train + test) == ROWS
    assert (train, test) == (sorted(train), sorted(test))
    assert [part.num_records for part in written] == [len(train), len(test)] == [30, 10]
    assert {path.name for path in (tmp_path / "out" / "train").iterdir()} == {
        path.name for path in data.iterdir()
    }


@pytest.mark.parametrize("kind", ["csv", "tfrecord"])
def test_compressed_files_are_split_into_compressed_files(kind, tmp_path):
    (tmp_path / "data").mkdir()
    FORMATS[kind](tmp_path / "plain", ROWS)
    stored = gzip.compress((tmp_path / "plain").read_bytes())
    (tmp_path / "data" / f"a.{kind}.gz").write_bytes(stored)

    split(tmp_path / "data", tmp_path / "out")
    split(tmp_path / "data", tmp_path / "again")

    assert (
        sorted(row for part in ("train", "test") for row in rows_in(tmp_path / "out" / part))
        == ROWS
    )
    for part in ("train", "test"):
        made, again = (tmp_path / each / part / f"a.{kind}.gz" for each in ("out", "again"))
        assert made.read_bytes()[:2] == stored[:2]
        assert made.read_bytes() == again.read_bytes()


def test_classes_are_distributed_evenly(data, tmp_path):
    split(data, tmp_path / "out", stratify="kind")

    kinds = [kind for _, kind in rows_in(tmp_path / "out" / "test")]
    assert (kinds.count("cat"), kinds.count("dog")) == (8, 2)


def test_the_same_seed_gives_the_same_split(data, tmp_path):
    for name, seed in (("one", 3), ("two", 3), ("three", 4)):
        split(data, tmp_path / name, seed=seed)

    one, two, three = (rows_in(tmp_path / name / "test") for name in ("one", "two", "three"))
    assert one == two != three


def test_a_field_that_does_not_exist_is_named(data, tmp_path):
    with pytest.raises(
        UsageError, match=r"--stratify=kinds: .* has no such field; did you mean 'kind'"
    ):
        split(data, tmp_path / "out", stratify="kinds")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_rows_of_csv_files_are_copied_byte_by_byte(tmp_path):
    rows = ['1,"a ""b"", c"\r\n', "02,  x\r\n", '3,"two\r\nlines"\r\n', "\r\n4,\r\n", "5.0,end"]
    header = "\ufeffnumber,text\r\n"
    file = tmp_path / "data.csv"
    file.write_bytes("".join([header, *rows]).encode())

    split(file, tmp_path / "out")

    parts = [(tmp_path / "out" / name / "data.csv").read_bytes() for name in ("train", "test")]
    assert all(part.startswith(header.encode()) for part in parts)
    bodies = b"".join(part.removeprefix(header.encode()) for part in parts)
    assert sorted(bodies) == sorted("".join(rows).encode())
    assert [
        open_source(str(tmp_path / "out" / name)).num_records for name in ("train", "test")
    ] == [
        4,
        1,
    ]


def test_columns_of_parquet_files_keep_their_types_and_metadata(tmp_path):
    table = pa.table({"day": pa.array([1, 2, 3, 4], pa.date32()), "x": [{"y": 1}] * 4})
    pq.write_table(table.replace_schema_metadata({"made by": "me"}), tmp_path / "data.parquet")

    split(tmp_path / "data.parquet", tmp_path / "out")

    written = pq.read_schema(tmp_path / "out" / "train" / "data.parquet")
    assert written.equals(table.schema)
    assert written.metadata[b"made by"] == b"me"


def test_files_with_the_same_name_are_numbered(tmp_path):
    for folder, rows in (("x", ROWS[:20]), ("y", ROWS[20:])):
        (tmp_path / folder).mkdir()
        write_csv(tmp_path / folder / "data.csv", rows)

    split(f"{tmp_path}/x,{tmp_path}/y", tmp_path / "out")

    names = sorted(path.name for path in (tmp_path / "out" / "train").iterdir())
    assert names == ["00000-data.csv", "00001-data.csv"]
    assert len(rows_in(tmp_path / "out" / "train")) == 30


def test_nothing_is_overwritten(tmp_path):
    write_csv(tmp_path / "data.csv", ROWS)
    (tmp_path / "out").mkdir()
    split(tmp_path / "data.csv", tmp_path / "out")

    with pytest.raises(OutputTakenError, match="exists and is not an empty folder"):
        split(tmp_path / "data.csv", tmp_path / "out")
    with pytest.raises(OutputTakenError):
        split(tmp_path / "data.csv", tmp_path / "data.csv")


def test_an_interrupted_split_leaves_nothing(tmp_path):
    write_csv(tmp_path / "data.csv", ROWS)

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        split(tmp_path / "data.csv", tmp_path / "out", on_progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]


def test_a_remote_output_is_refused(tmp_path):
    write_csv(tmp_path / "data.csv", ROWS)

    with pytest.raises(UsageError, match="--output=memory://parts: the parts are written to a"):
        split(tmp_path / "data.csv", "memory://parts")


def test_a_numeric_label_is_a_class(tmp_path):
    with recordio.Writer(str(tmp_path / "a.recordio")) as writer:
        for number in range(40):
            writer.write(example.encode({"label": np.int64([number % 4]), "x": np.float32([1, 2])}))

    split(tmp_path / "a.recordio", tmp_path / "out", stratify="label")

    source = open_source(str(tmp_path / "out" / "test"))
    labels = [int(each["label"][0]) for each in source.read_records(0, source.num_records, None)]
    assert np.ptp(np.bincount(labels, minlength=4)) <= 1
    with pytest.raises(UsageError, match="several values"):
        split(tmp_path / "a.recordio", tmp_path / "other", stratify="x")
