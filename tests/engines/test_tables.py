"""Tables as they are: gaps, text labels, dates and lists, from the file to the prediction."""

from __future__ import annotations

import csv
import datetime as dt
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.engines.test_in_process import assert_same_bits, weights

import elasticdl
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import DataError, SchemaError

if TYPE_CHECKING:
    from pathlib import Path

SALARY = {"kind": "number", "column": "salary"}
ROLE = {"kind": "category", "column": "role", "vocabulary": ["clerk", "boss"]}
ALL_KINDS: list[dict[str, Any]] = [
    {"kind": "number", "column": "age", "nullable": True},
    SALARY,
    ROLE,
    {"kind": "category", "column": "city", "buckets": 30},
    {"kind": "time", "column": "hired", "cycles": ["year", "week"], "nullable": True},
    {"kind": "sequence", "column": "tags", "vocabulary": ["a", "b"], "delimiter": ";"},
    {"kind": "sparse", "column": "places", "size": 4},
    {"kind": "bucket", "of": "salary", "boundaries": [30_000, 60_000]},
    {"kind": "embedding", "of": {"kind": "bucket", "of": SALARY, "boundaries": [45_000]},
     "dimension": 2},
    {"kind": "indicator", "of": {"kind": "cross", "of": ["role", "city"], "buckets": 20}},
]  # fmt: skip
PARAMS = {"label": "who", "classes": ["poor", "middle", "rich"], "columns": ALL_KINDS}


def rows(number: int, seed: int = 1) -> list[dict[str, Any]]:
    """Return rows of which every column but salary and city has gaps."""
    draw = random.Random(seed)
    made = []
    for _ in range(number):
        salary = draw.randrange(20_000, 90_000)
        made.append(
            {
                "age": draw.choice([None, draw.randrange(18, 70)]),
                "salary": salary,
                "role": draw.choice(["clerk", "boss", "cook", None]),
                "city": draw.choice(["Rome", "Oslo", "Bern"]),
                "hired": draw.choice([None, dt.date(2015, 1, 1 + draw.randrange(28))]),
                "tags": ";".join(draw.sample(["a", "b", "c"], draw.randrange(4))) or None,
                "places": draw.choice([None, "0:1.5 3:2", "1"]),
                "who": "rich" if salary > 60_000 else "poor" if salary < 30_000 else "middle",
            }
        )
    return made


def write_csv(path: Path, table: list[dict[str, Any]]) -> str:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, table[0].keys())
        writer.writeheader()
        writer.writerows(table)
    return str(path)


def write_parquet(path: Path, table: list[dict[str, Any]]) -> str:
    pq.write_table(pa.Table.from_pylist(table), path)
    return str(path)


def train(data: str, output: Path, model_def: str = "classifier.DNN", **options: Any) -> Any:
    return elasticdl.train(
        **{
            "model_def": model_def,
            "params": {**PARAMS, "learning_rate": 0.01},
            "data": data,
            "output": str(output),
            "minibatch_size": 16,
            "num_epochs": 2,
            "seed": 3,
            "reporter": Silent(),
            **options,
        }
    )


def predict(model: Path, data: str, output: Path) -> list[dict[str, str]]:
    """Return the rows that a prediction writes."""
    elasticdl.predict(
        trained_model=str(model), data=data, output=str(output), format="csv", reporter=Silent()
    )
    with (output / "part-00000.csv").open() as file:
        return [*csv.DictReader(file)]


@pytest.mark.parametrize(
    "model_def",
    [
        # The deep half of the other one.
        pytest.param("classifier.DNN", marks=pytest.mark.exhaustive),
        "wide_and_deep.Classifier",
    ],
)
def test_a_stopped_training_leaves_no_trace(model_def: str, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "a.csv", rows(100))

    train(data, tmp_path / "one", model_def)
    train(data, tmp_path / "two", model_def, max_steps=5)
    train(data, tmp_path / "two", model_def)

    assert_same_bits(weights(tmp_path / "one"), weights(tmp_path / "two"))


def test_csv_and_parquet_train_the_same_model(tmp_path: Path) -> None:
    table = rows(60)
    text = write_csv(tmp_path / "a.csv", table)
    typed = write_parquet(tmp_path / "a.parquet", table)

    train(text, tmp_path / "one", shuffle=False)
    train(typed, tmp_path / "two", shuffle=False)

    assert_same_bits(weights(tmp_path / "one"), weights(tmp_path / "two"))


def test_predictions_are_label_values(tmp_path: Path) -> None:
    table = rows(300)
    train(write_csv(tmp_path / "a.csv", table), tmp_path / "out", num_epochs=20)
    new = rows(40, seed=2)
    for row in new:
        row |= {"city": "Paris", "unknown": "?"}
    without = [{name: row[name] for name in row if name != "who"} for row in new]

    found = predict(tmp_path / "out", write_csv(tmp_path / "new.csv", without), tmp_path / "p")

    right = [row["who"] == one["prediction"] for row, one in zip(new, found, strict=True)]
    assert np.mean(right) > 0.8
    for one in found:
        outputs = [float(one[f"output_{i}"]) for i in range(3)]
        assert float(one["probability"]) == max(outputs)
        assert PARAMS["classes"][int(np.argmax(outputs))] == one["prediction"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that was trained on forty rows."""
    folder = tmp_path_factory.mktemp("trained")
    train(write_csv(folder / "a.csv", rows(40)), folder / "out")
    return folder / "out"


def test_a_label_may_be_missing_only_in_prediction(trained: Path, tmp_path: Path) -> None:
    table = rows(40)
    gaps = write_parquet(tmp_path / "gaps.parquet", [row | {"who": None} for row in table])

    found = predict(trained, gaps, tmp_path / "p")

    assert len(found) == 40
    with pytest.raises(SchemaError, match="Field 'who', the label, has no value"):
        train(gaps, tmp_path / "other")


@pytest.mark.parametrize("lost", ["role", "salary", "tags", "places", "hired"])
def test_a_missing_feature_is_named_in_prediction(lost: str, trained: Path, tmp_path: Path) -> None:
    rest = [{name: row[name] for name in row if name not in (lost, "who")} for row in rows(40)]

    with pytest.raises(
        DataError, match=f"the records have no {lost!r}.* An empty column is enough"
    ):
        predict(trained, write_csv(tmp_path / "rest.csv", rest), tmp_path / "p")


class NoTraining(Silent):
    """Fails when training starts."""

    def started(self, title: str, total: int, unit: str, done: int = 0) -> None:
        del total, unit, done
        assert title != "Training"


UNFIT = {
    "no label": (lambda row: {k: v for k, v in row.items() if k != "who"}, "record 0.*'who'"),
    "an unknown class": (
        lambda row: {**row, "who": "noble" if row["age"] == 20 else row["who"]},
        "record 5: Field 'who' has the value 'noble'",
    ),
    "another type": (
        lambda row: {**row, "salary": "high"},
        r"line 2 \(record 0\): column 'salary' holds",
    ),
}


@pytest.mark.parametrize("params", [PARAMS, {"label": "who"}], ids=["all params", "derived"])
@pytest.mark.parametrize("unfit", UNFIT)
def test_invalid_validation_data_are_found_before_the_training(
    unfit: str, params: dict[str, Any], tmp_path: Path
) -> None:
    change, message = UNFIT[unfit]
    table = [{**row, "age": 19 + number % 40} for number, row in enumerate(rows(40), -4)]
    data = write_csv(tmp_path / "a.csv", table)
    other = write_csv(tmp_path / "other.csv", [change(row) for row in table])

    with pytest.raises(SchemaError, match=f"other.csv, {message}"):
        train(
            data,
            tmp_path / "out",
            params=params,
            validation_data=other,
            reporter=NoTraining(),
        )


def test_a_column_that_no_feature_uses_may_hold_anything(tmp_path: Path) -> None:
    table = [row | {"odd": {"x": 1}} for row in rows(40)]
    without = [{name: row[name] for name in row if name != "who"} for row in table]

    train(write_parquet(tmp_path / "a.parquet", table), tmp_path / "out")
    found = predict(
        tmp_path / "out", write_parquet(tmp_path / "b.parquet", without), tmp_path / "p"
    )

    assert len(found) == 40


def test_a_regression_reads_columns_and_writes_numbers(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "a.csv", rows(60))
    columns = [entry for entry in ALL_KINDS if entry["kind"] in ("number", "time", "category")]
    params = {
        "label": "salary", "label_mean": 55_000, "label_scale": 20_000,
        "columns": [entry for entry in columns if entry is not SALARY],
    }  # fmt: skip

    train(data, tmp_path / "out", "wide_and_deep.Regressor", params=params)
    found = predict(tmp_path / "out", data, tmp_path / "p")

    assert [*found[0]] == ["key", "output"]
    # In the label's own unit; nothing here says more of a salary than their mean.
    assert all(abs(float(row["output"]) - 55_000) < 100_000 for row in found)


def test_balanced_class_weights_change_the_training(trained: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "a.csv", rows(40))

    train(data, tmp_path / "two", params={**PARAMS, "class_counts": [30, 60, 60]})

    one, two = weights(trained), weights(tmp_path / "two")
    assert any(one[path].tobytes() != two[path].tobytes() for path in one)


@pytest.mark.usefixtures("exported")
def test_the_saved_model_takes_sequences_of_any_length(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    table = rows(60)
    train(write_csv(tmp_path / "a.csv", table), tmp_path / "out")
    long = [row | {"tags": "a;b;c;a;a;b;b"} for row in table[:3]]
    data = write_csv(tmp_path / "long.csv", long)
    found = predict(tmp_path / "out", data, tmp_path / "p")

    from elasticdl.data.schema import Schema
    from elasticdl.data.sources import open_source
    from elasticdl.definition import Mode
    from elasticdl.zoo.prebuilt.classifier import DNN

    model = DNN(**PARAMS)
    records = open_source(data).read_records(0, 3, Schema.from_user(model.data_schema()))
    features, _ = model.default_input(records, Mode.PREDICTION)
    saved = tf.saved_model.load(str(tmp_path / "out" / "saved_model"))
    (outputs,) = saved.signatures["serving_default"](
        **{name: tf.constant(array) for name, array in features.items()}
    ).values()

    written = [[float(row[f"output_{i}"]) for i in range(3)] for row in found]
    np.testing.assert_allclose(outputs, written, rtol=1e-5)
