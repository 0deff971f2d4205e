"""The CSV files are, byte for byte, what pandas would write of the same columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from elasticdl.evaluation.report_views import _of_floats, write_views

IDS = ["a.jpg", 'with "quotes"', "a, b", "line\nbreak", "ü", "plain"]


def test_rows_are_written_as_by_pandas(write, tmp_path) -> None:
    values = np.array([1.0, 0.1, np.nan, 1e-7, 1e20, -0.0])
    outputs = np.float32([[0.25, 0.75]] * 6)
    functions = {
        "sparse categorical ce": lambda t, p: values[int(t)],
        "dice@0.5, %": lambda t, p: np.float32(0.1),
    }
    # Labels are row numbers, so that a function knows its row; only 0 and 1 are classes.
    result = write(np.arange(6), np.tile(outputs, (1, 3)), functions, ids=IDS)
    views = write_views(result.path, tmp_path)

    written = Path(views.rows).read_bytes()
    expected = pd.DataFrame(
        {
            "sparse categorical ce": values,
            "dice@0.5, %": np.full(6, 0.1, np.float32),
            "label": np.arange(6),
            "prediction": 1,
            "confidence": 1 / (3 * (1 + np.exp(-0.5))),
            "source": None,
        },
        index=IDS,
    )
    beside = pd.read_csv(views.rows, index_col=0)["confidence"]
    expected["confidence"] = beside.to_numpy()
    assert written == expected.to_csv().encode()
    np.testing.assert_allclose(beside, 1 / (3 * (1 + np.exp(-0.5))))


@settings(max_examples=200)
@given(
    st.sampled_from([np.float32, np.float64]).flatmap(
        lambda dtype: arrays.arrays(dtype, st.integers(1, 40), elements={"allow_nan": True})
    )
)
def test_numbers_are_written_as_by_pandas(values) -> None:
    texts = _of_floats(pa.array(values.astype(np.float64)), values.dtype).to_pylist()

    expected = pd.DataFrame({"v": values}).to_csv(header=False).splitlines()
    assert [f"{row},{text}" for row, text in enumerate(texts)] == expected


def test_the_summary_matches_describe(write, tmp_path) -> None:
    rng = np.random.default_rng(0)
    columns = {"a": rng.normal(size=50), "b, c": np.where(rng.random(50) < 0.2, np.nan, 1.5)}
    functions = {name: lambda t, p, c=c: float(c[int(t)]) for name, c in columns.items()}
    result = write(np.arange(50) + 0.0, np.arange(50) + 0.5, functions)

    views = write_views(result.path, tmp_path)

    found = pd.read_csv(views.summary, index_col=0)
    expected = pd.DataFrame(columns).describe()
    pd.testing.assert_frame_equal(found, expected, rtol=1e-12)
    first_lines = [line.split(",")[0] for line in Path(views.summary).read_text().splitlines()]
    assert first_lines == ["", "count", "mean", "std", "min", "25%", "50%", "75%", "max"]


def test_too_many_rows_are_not_written_and_this_is_reported(write, tmp_path) -> None:
    result = write(np.zeros(3) + 2.5, np.zeros(3), {"v": lambda t, p: p})
    (tmp_path / "eval_report.csv").write_text("of an earlier report")

    views = write_views(result.path, tmp_path, max_rows=2)

    assert views.rows is None
    assert not (tmp_path / "eval_report.csv").exists()
    assert "3 rows are more than 2" in views.notes[0]
    assert Path(views.summary).exists()


def test_a_function_called_label_keeps_its_name(write, tmp_path) -> None:
    result = write([2.5], [0.5], {"label": lambda t, p: 7.0})

    views = write_views(result.path, tmp_path)

    assert Path(views.rows).read_text().splitlines() == [
        ",label,label (report),prediction,confidence,source",
        "id0,7.0,2.5,0.5,,",
    ]


@pytest.mark.parametrize("num_rows", [0, 1])
def test_few_rows_are_also_written_to_a_file(write, tmp_path, num_rows) -> None:
    result = write(np.zeros(num_rows), np.zeros(num_rows), {"v": lambda t, p: p})

    views = write_views(result.path, tmp_path)

    assert len(Path(views.rows).read_text().splitlines()) == 1 + num_rows
