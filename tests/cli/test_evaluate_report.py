"""`elasticdl evaluate --report`: what evaluate sums up, for each record."""

from __future__ import annotations

import csv
import html
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.engines.conftest import MODEL, write_records

import elasticdl
from elasticdl.cli.main import _run
from elasticdl.engines.progress_bar import Silent

pytestmark = pytest.mark.usefixtures("weights_only")

# The same with one value an example, a penalty on weights, and a metric that is a function.
ONE_VALUE_AN_EXAMPLE = (
    MODEL.replace("keras.ops.mean(\n", "(\n")
    .replace('activation="relu")', 'activation="relu", kernel_regularizer="l2")')
    .replace(
        "keras.metrics.SparseCategoricalAccuracy()",
        "keras.metrics.sparse_categorical_accuracy",
    )
)

TORCH = """
import numpy as np
import torch


def custom_model():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def data_schema():
    return [
        {"name": "x", "shape": [4], "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    return np.stack([r["x"] for r in records]), np.stack([r["label"][0] for r in records])


def right(labels, predictions):
    return (predictions.argmax(1) == labels).float()


loss = torch.nn.CrossEntropyLoss()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def eval_metrics_fn():
    return {"accuracy": right}
"""


def train(folder, model, data):
    folder.mkdir()
    (folder / "zoo").mkdir()
    (folder / "zoo" / "small.py").write_text(model)
    elasticdl.train(
        model_zoo=str(folder / "zoo"),
        model_def="small",
        data=str(data),
        output=str(folder / "out"),
        minibatch_size=16,
        reporter=Silent(),
    )
    return folder / "out"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    write_records(folder / "a.recordio", 40)
    write_records(folder / "b.recordio", 77, seed=1)
    return folder


@pytest.fixture(scope="module", params=["mean", "one value an example", "torch"])
def model(request, tmp_path_factory, data):
    text = {"mean": MODEL, "torch": TORCH}.get(request.param, ONE_VALUE_AN_EXAMPLE)
    return train(tmp_path_factory.mktemp("model") / "of", text, data)


def evaluate(model, data, *flags):
    common = ["evaluate", f"--trained_model={model}", f"--data={data}", "--quiet"]
    assert _run([*common, "--minibatch_size=16", *flags], debug=False) == 0
    return json.loads((model / "evaluation.json").read_text())["metrics"]


def test_a_report_has_the_keys_outputs_and_losses_of_the_records(model, data, tmp_path, capsys):
    plain = evaluate(model, data)
    metrics = evaluate(model, data, f"--report={tmp_path / 'r'}")
    predicted = tmp_path / "predicted"
    elasticdl.predict(
        trained_model=str(model),
        data=str(data),
        output=str(predicted),
        format="parquet",
        minibatch_size=16,
        reporter=Silent(),
    )

    rows = pq.read_table(tmp_path / "r" / "report.parquet")
    expected = pq.read_table(predicted / "part-00000.parquet")
    assert rows["data_id"].to_pylist() == expected["key"].to_pylist()
    assert rows["source"].to_pylist()[:1] == [str(data / "a.recordio")]
    outputs = np.stack(expected["output"].to_numpy())
    assert rows["prediction"].to_pylist() == outputs.argmax(axis=1).tolist()
    assert metrics == pytest.approx(plain, rel=1e-6)
    assert np.mean(rows["metric.loss"]) == pytest.approx(metrics["loss"], rel=1e-5)
    assert np.mean(rows["correct"]) == pytest.approx(metrics["accuracy"], rel=1e-6)
    if "metric.accuracy" in rows.column_names:
        assert rows["metric.accuracy"].to_pylist() == [float(c.as_py()) for c in rows["correct"]]
    names = {path.name for path in (tmp_path / "r").iterdir()}
    assert names == {
        "report.parquet", "eval_report.csv", "eval_report_summary.csv", "report.html"
    }  # fmt: skip
    assert "Report in" in capsys.readouterr().out


@pytest.fixture(scope="module")
def small(tmp_path_factory, data):
    return train(tmp_path_factory.mktemp("model") / "of", MODEL, data)


def test_a_report_is_written_into_the_model_by_default(small, data) -> None:
    evaluate(small, data, "--report")

    assert (small / "report" / "report.html").exists()


def test_the_loss_of_a_row_is_that_of_the_example_alone(small, data, tmp_path) -> None:
    evaluate(small, data, f"--report={tmp_path}")
    (tmp_path / "one").mkdir()
    write_records(tmp_path / "one" / "a.recordio", 1)

    alone = evaluate(small, tmp_path / "one")

    first = pq.read_table(tmp_path / "report.parquet")["metric.loss"][0].as_py()
    assert first == pytest.approx(alone["loss"], rel=1e-5)


class RecordingReporter(Silent):
    """Keeps what a person is told."""

    def __init__(self) -> None:
        self.notes = []

    def note(self, message):
        self.notes.append(message)


def test_a_loss_that_is_not_the_mean_over_examples_is_noted(small, data, tmp_path) -> None:
    # The root of a mean is not the mean of roots.
    model = MODEL.replace("    return keras.ops.mean(", "    return keras.ops.sqrt(keras.ops.mean(")
    model = model.replace("from_logits=True)\n    )", "from_logits=True)\n    ))")
    out = train(tmp_path / "of", model, data)
    told, quiet = RecordingReporter(), RecordingReporter()

    elasticdl.evaluate(trained_model=str(out), data=str(data), report=True, reporter=told)
    elasticdl.evaluate(trained_model=str(small), data=str(data), report=True, reporter=quiet)

    assert "not the mean of the losses" in told.notes[0]
    assert quiet.notes == []


def test_a_report_on_workers_is_refused(small, data, capsys) -> None:
    flags = [f"--trained_model={small}", f"--data={data}", "--report", "--num_workers=2"]

    assert _run(["evaluate", *flags], debug=False) == 2
    assert "--report runs in one process" in capsys.readouterr().err


def test_pictures_come_from_the_records(digits, tmp_path) -> None:
    elasticdl.train(
        model_def="mnist.custom_model",
        data=str(digits / "test"),
        output=str(tmp_path / "out"),
        max_steps=2,
        reporter=Silent(),
    )

    evaluate(tmp_path / "out", digits / "test", "--report")

    assert "data:image/png" in (tmp_path / "out" / "report" / "report.html").read_text()


@pytest.mark.parametrize("names", [["<red>", "green, dark", "blue"], ["red", "green"]])
def test_the_names_of_the_classes_are_on_the_page_and_in_the_table(names, data, tmp_path):
    model = train(tmp_path / "of", f"{TORCH}\n\nclasses = {names!r}\n", data)

    evaluate(model, data, f"--report={tmp_path / 'r'}")

    page = (tmp_path / "r" / "report.html").read_text()
    assert all(html.escape(name) in page for name in names)
    with (tmp_path / "r" / "eval_report.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[-2:] == ["label_name", "prediction_name"]
    named = [*names, ""][:3]
    for row in rows:
        assert row["label_name"] == named[int(row["label"])]
        assert row["prediction_name"] == named[int(row["prediction"])]
