"""What a report comes to: compared with counting by hand, and with scikit-learn and pandas."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticdl.errors import CorruptDataError, NoDataError
from elasticdl.evaluation.report_tables import Report, wilson

LABELS = np.array([0, 0, 0, 1, 1, 2])
SAID = np.array([0, 0, 1, 1, 0, 2])


@pytest.fixture
def report(write) -> Report:
    outputs = np.full((6, 4), 0.1, np.float32)
    outputs[np.arange(6), SAID] = 0.7
    return Report(write(LABELS, outputs, {"ce": lambda t, p: -math.log(p[t])}).path)


def test_confusions_are_counted(report) -> None:
    assert report.confusion() == {(0, 0): 2, (0, 1): 1, (1, 1): 1, (1, 0): 1, (2, 2): 1}


def test_class_metrics_match_scikit_learn(report) -> None:
    from sklearn.metrics import precision_recall_fscore_support

    rows = report.classes()

    expected = precision_recall_fscore_support(LABELS, SAID, labels=[0, 1, 2])
    found = [[r.precision, r.recall, r.f1, r.support] for r in rows]
    np.testing.assert_allclose(np.array(found).T, expected)
    assert [row.name for row in rows] == [0, 1, 2]


def test_accuracy_counts_only_known_values(report) -> None:
    assert report.accuracy == (4, 6)


def test_the_worst_come_first_and_rows_without_a_value_are_omitted(write) -> None:
    values = np.array([3.0, np.nan, 9.0, 1.0, 9.0])
    report = Report(write(np.zeros(5), values + 2, {"error": lambda t, p: p - 2}).path)

    assert report.worst("error", 3) == [2, 4, 0]
    assert report.worst("error", 99, largest=False) == [3, 0, 2, 4]


def test_the_worst_match_a_stable_sort(write) -> None:
    values = np.random.default_rng(0).integers(0, 40, 300).astype(float)
    report = Report(write(np.zeros(300) + 0.5, values, {"error": lambda t, p: p}).path)

    expected = sorted(range(300), key=lambda row: (-values[row], row))
    assert report.worst("error", 100) == expected[:100]


def test_columns_have_the_requested_order(report) -> None:
    assert report.columns("prediction", "data_id").column_names == ["prediction", "data_id"]


def test_values_of_wrong_examples_determine_what_is_bad(write) -> None:
    outputs = np.float32([[0.9, 0.1], [0.2, 0.8]] * 3)
    labels = np.array([0, 0] * 3)
    functions = {"loss-like score": lambda t, p: 1 - p[t], "plain": lambda t, p: p[t]}

    report = Report(write(labels, outputs, functions).path)

    assert report.is_worse_when_larger("loss-like score")
    assert not report.is_worse_when_larger("plain")


def test_without_wrong_examples_the_name_determines_what_is_bad(write) -> None:
    functions = {"Dice": lambda t, p: p, "squared error": lambda t, p: p}

    report = Report(write(np.zeros(3) + 2.5, np.arange(3.0), functions).path)

    assert not report.is_worse_when_larger("Dice")
    assert report.is_worse_when_larger("squared error")


def test_rows_are_found_by_their_number_in_any_group(write, monkeypatch) -> None:
    monkeypatch.setattr("elasticdl.evaluation.report_writer._GROUP_ROWS", 4)
    monkeypatch.setattr("elasticdl.evaluation.report_writer._BLOCK_ROWS", 2)
    report = Report(write(np.zeros(11) + 0.5, np.arange(11.0), batch=2).path)

    assert [row["data_id"] for row in report.rows([10, 0, 5])] == ["id10", "id0", "id5"]
    assert pq.ParquetFile(report.path).num_row_groups > 1


def test_a_metric_named_with_dots_is_one_column(write) -> None:
    report = Report(write([0.5], [2.0], {"a": lambda t, p: 1.0, "a.b": lambda t, p: p}).path)

    assert report.metric("a").tolist() == [1.0]
    assert report.metric("a.b").tolist() == [2.0]


@pytest.mark.parametrize("values", [[1.0, 2.0, 4.0, np.nan], [5.0], [np.nan], [0.1] * 7])
def test_a_summary_matches_pandas(write, values) -> None:
    import pandas as pd

    summary = Report(write(np.zeros(len(values)), values, {"v": lambda t, p: p}).path).summary("v")

    found = [summary.count, summary.mean, summary.std, summary.min, *summary.quartiles, summary.max]
    np.testing.assert_allclose(found, pd.Series(values).describe().to_numpy(), rtol=1e-12)


def test_wilson_intervals_match_scipy() -> None:
    from scipy.stats import binomtest

    for successes, trials in [(0, 5), (5, 5), (3, 10), (900, 1000)]:
        expected = binomtest(successes, trials).proportion_ci(0.95, "wilson")
        np.testing.assert_allclose(wilson(successes, trials), (expected.low, expected.high))


def test_a_file_that_is_not_a_report_is_refused(tmp_path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    (tmp_path / "text.parquet").write_text("no")

    with pytest.raises(NoDataError):
        Report(tmp_path / "none.parquet")
    for name in ("other", "text"):
        with pytest.raises(CorruptDataError):
            Report(tmp_path / f"{name}.parquet")
