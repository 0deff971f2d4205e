"""Rows of a table are stored once, split by their content, with what their columns hold."""

from __future__ import annotations

import uuid

import numpy as np
import pyarrow as pa
import pytest

from elasticdl.data.hash_mixing import shares
from elasticdl.data.row_hash import row_hashes
from elasticdl.data.snapshot import read_snapshot, write_snapshot
from elasticdl.data.sources import open_source
from elasticdl.errors import DataError

NUM_ROWS = 10_000


def batches(table: pa.Table, rows: int) -> list[pa.RecordBatch]:
    return table.to_batches(max_chunksize=rows)


def numbers() -> pa.Table:
    return pa.table({"a": np.arange(NUM_ROWS), "b": [f"t{i % 7}" for i in range(NUM_ROWS)]})


def stored(table: pa.Table, folder, **options):
    return write_snapshot(table.schema, batches(table, 999), str(folder), **options)


@pytest.mark.parametrize("place", ["disk", "memory"])
def test_every_row_is_in_one_of_the_two_files(tmp_path, place) -> None:
    folder = str(tmp_path) if place == "disk" else f"memory://{uuid.uuid4().hex}"
    snapshot = stored(numbers(), folder, held_out=0.2)

    assert snapshot.num_validation == pytest.approx(0.2 * NUM_ROWS, rel=0.1)
    found = [
        int(record["a"][0])
        for uri, count in (
            (snapshot.training, snapshot.num_training),
            (snapshot.validation, snapshot.num_validation),
        )
        for record in open_source(uri).read_records(0, count, None)
    ]
    assert sorted(found) == list(range(NUM_ROWS))
    assert read_snapshot(folder) == snapshot


def test_the_split_depends_only_on_the_rows(tmp_path) -> None:
    table = numbers()
    turned = table.take(np.arange(NUM_ROWS)[::-1])
    first = stored(table, tmp_path / "a", held_out=0.2)
    second = stored(turned, tmp_path / "b", held_out=0.2)

    def held(snapshot):
        records = open_source(snapshot.validation).read_records(0, snapshot.num_validation, None)
        return sorted(int(record["a"][0]) for record in records)

    assert held(first) == held(second)


def test_columns_are_summarized_over_all_rows(tmp_path) -> None:
    table = pa.table({"x": pa.array([None, 1.0, 3.0]), "t": ["a", "b", "b"]})
    x, t = write_snapshot(table.schema, batches(table, 1), str(tmp_path)).columns

    assert (x.num_rows, x.num_missing, x.mean, x.deviation) == (3, 1, 2.0, 1.0)
    assert t.values == (("b", 2), ("a", 1))


def test_an_incomplete_snapshot_is_not_read(tmp_path) -> None:
    stored(numbers(), tmp_path)
    (tmp_path / "snapshot.json").unlink()

    assert read_snapshot(str(tmp_path)) is None


def test_a_failed_read_leaves_nothing(tmp_path) -> None:
    def broken():
        yield from batches(numbers(), 10)[:2]
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        write_snapshot(numbers().schema, broken(), str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("schema", "problem"),
    [(pa.schema([("a", pa.int64())] * 2), "'a'"), (pa.schema([("a", pa.int64())]), "no rows")],
)
def test_a_table_that_cannot_be_trained_on_is_refused(tmp_path, schema, problem) -> None:
    with pytest.raises(DataError, match=problem):
        write_snapshot(schema, [], str(tmp_path))


def test_validation_rows_may_be_given(tmp_path) -> None:
    table = numbers()
    held = pa.record_batch({"b": ["t1"], "a": pa.array([5], pa.int32())})
    snapshot = stored(table, tmp_path, validation=[held])

    assert (snapshot.num_training, snapshot.num_validation) == (NUM_ROWS, 1)
    with pytest.raises(DataError, match="have no column 'b'"):
        stored(table, tmp_path, validation=[held.select(["a"])])


def test_equal_rows_have_equal_hashes_in_any_batch() -> None:
    table = pa.table(
        {
            "n": [1, 1, 2, None],
            "f": [0.0, -0.0, float("nan"), None],
            "s": ["x", "x", "y", None],
            "l": [[1], [1], [], None],
            "d": pa.array([1, 1, 2, None], pa.date32()),
            "b": [True, True, False, None],
        }
    )
    [batch] = table.to_batches()
    hashes = row_hashes(batch)

    assert hashes[0] == hashes[1]
    assert len({*hashes.tolist()}) == 3
    np.testing.assert_array_equal(hashes[2:], row_hashes(batch.slice(2)))


def test_hashes_are_distributed_evenly() -> None:
    [batch] = pa.table({"a": np.arange(NUM_ROWS)}).to_batches()
    counts, _ = np.histogram(shares(row_hashes(batch)), bins=10, range=(0, 1))

    assert counts.min() > 0.9 * NUM_ROWS / 10
    assert counts.max() < 1.1 * NUM_ROWS / 10


def test_a_row_of_zeros_is_not_always_held_out() -> None:
    columns = {"a": [0, 0, 1], "b": [0.0, -0.0, 0.0], "c": [False, False, False]}
    [batch] = pa.table(columns).to_batches()
    first, second, other = shares(row_hashes(batch))

    assert 0.2 < first == second != other
