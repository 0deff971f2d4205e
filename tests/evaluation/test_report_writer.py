"""The file a report is: as many rows as ids, each under its own."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.errors import DefinitionError
from elasticdl.evaluation.functions import EvalFunctions
from elasticdl.evaluation.report_writer import ReportWriter

PROBABLE = np.float32([[0.1, 0.9], [0.8, 0.2], [0.4, 0.6]])


def test_a_row_has_everything_known_about_its_example(write) -> None:
    result = write(
        [1, 1, 0],
        PROBABLE,
        {"p of 1": lambda t, p: float(p[1])},
        weights=np.array([1.0, 2.0, 1.0]),
        sources=["a.jpg", None, "c.jpg"],
    )

    rows = pq.read_table(result.path).to_pylist()
    assert rows[1] == {
        "data_id": "id1",
        "split": "validation",
        "source": None,
        "label": 1,
        "prediction": 0,
        "confidence": pytest.approx(0.8),
        "correct": False,
        "weight": 2.0,
        "metric.p of 1": pytest.approx(0.2),
    }
    assert [row["source"] for row in rows] == ["a.jpg", None, "c.jpg"]


def test_means_omit_missing_values(write) -> None:
    result = write([0, 1, 2], [4.0, np.nan, 8.0], {"v": lambda t, p: p}, weights=[3.0, 1.0, 1.0])

    assert result.means == {"v": 6.0}
    assert result.weighted_means == {"v": 5.0}
    assert result.num_missing == {"v": 1}


def test_batches_of_any_size_give_the_same_rows(write) -> None:
    rng = np.random.default_rng(0)
    labels, outputs = rng.integers(0, 3, 10_000), rng.random((10_000, 3))
    functions = {"v": lambda t, p: p[t]}

    small = write(labels, outputs, functions, batch=7, name="small")
    large = write(labels, outputs, functions, batch=10_000, name="large")

    assert pq.read_table(small.path).equals(pq.read_table(large.path))
    assert small.num_rows == 10_000


@settings(max_examples=40)
@given(
    st.lists(st.one_of(st.text(max_size=3), st.binary(max_size=2), st.integers(0, 9)), max_size=40),
    st.integers(1, 9),
)
def test_ids_survive_a_round_trip(ids, batch) -> None:
    ids = [i for i in ids if not isinstance(i, str) or i.isprintable()]
    with (
        tempfile.TemporaryDirectory() as folder,
        ReportWriter(folder, functions=EvalFunctions({"v": lambda t, p: p})) as writer,
    ):
        for start in range(0, len(ids), batch):
            some = ids[start : start + batch]
            writer.add(ids=some, labels=np.zeros(len(some)), outputs=np.zeros(len(some)))
        writer.close()
        written = pq.read_table(writer.result.path)["data_id"].to_pylist()

    texts = [i.decode(errors="backslashreplace") if isinstance(i, bytes) else str(i) for i in ids]
    assert written == texts
    twice = sorted(text for text, count in Counter(texts).items() if count > 1)
    assert writer.result.num_duplicated == len(twice)
    assert set(writer.result.duplicated) <= set(twice)
    assert bool(writer.result.notes) == bool(twice)


def test_ids_of_arrays_are_strings(write) -> None:
    ids = np.array([b"a.jpg", b"b.jpg"])

    result = write([0, 1], [0.1, 0.9], ids=ids)

    assert pq.read_table(result.path)["data_id"].to_pylist() == ["a.jpg", "b.jpg"]


def test_masks_are_not_stored(write) -> None:
    def dice(y_true, y_pred):
        return (y_true == y_pred).mean()

    result = write(np.zeros((3, 4, 4)), np.zeros((3, 4, 4, 2)).argmax(-1), [dice])

    row = pq.read_table(result.path).to_pylist()[0]
    assert (row["label"], row["prediction"], row["correct"]) == (None, None, None)
    assert row["metric.dice"] == 1.0


def test_an_empty_report_is_written(write) -> None:
    result = write(np.zeros(0), np.zeros(0), {"v": lambda t, p: p})

    assert pq.read_table(result.path).num_rows == 0
    assert "metric.v" in pq.read_table(result.path).column_names


def test_nothing_is_published_if_the_body_raises(write, tmp_path) -> None:
    write([0], [0.5])
    before = Path(tmp_path, "report.parquet").read_bytes()

    def broken(y_true, y_pred):
        raise ValueError

    with pytest.raises(Exception, match="broken"):
        write([0], [0.5], [broken])

    assert Path(tmp_path, "report.parquet").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["report.parquet"]


def test_a_metric_of_the_caller_must_not_hide_a_function(tmp_path) -> None:
    with (
        pytest.raises(DefinitionError, match="'loss'"),
        ReportWriter(tmp_path, functions=EvalFunctions({"loss": lambda t, p: p})) as writer,
    ):
        writer.add(
            ids=["a"], labels=np.zeros(1), outputs=np.zeros(1), metrics={"loss": np.zeros(1)}
        )


def test_examples_of_different_sizes_are_rows_of_one_report(tmp_path) -> None:
    functions = EvalFunctions({"share": lambda t, p: (t == p).mean()})
    with ReportWriter(tmp_path, functions=functions) as writer:
        for size in (2, 3, 3):
            masks = np.ones((4, size, size))
            writer.add(ids=range(4), labels=masks, outputs=masks)

    assert writer.result.means == {"share": 1.0}
    assert writer.result.num_rows == 12


def test_lists_of_numbers_are_labels(tmp_path) -> None:
    with ReportWriter(tmp_path) as writer:
        writer.add(ids=["a", "b"], labels=[1, 0], outputs=[0.9, 0.8])

    assert pq.read_table(writer.result.path)["correct"].to_pylist() == [True, False]


def test_a_number_of_rows_unlike_that_of_ids_is_an_error(tmp_path) -> None:
    writer = ReportWriter(tmp_path, functions=EvalFunctions({"v": lambda t, p: p}))
    with pytest.raises(ValueError, match="3 rows"), writer:
        writer.add(ids=["a", "b"], labels=np.zeros(3), outputs=np.zeros(3))
