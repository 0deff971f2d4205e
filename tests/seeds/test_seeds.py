"""What was asked for, does: the documents' models train, and their two ways to ask are one job."""

from __future__ import annotations

import ast
import json
import shlex
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner

import elasticdl
from elasticdl import job_options
from elasticdl.cli.main import cli

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("weights_only")]


def losses(output: Path) -> list[float]:
    events = [json.loads(line) for line in (output / "events.jsonl").read_text().splitlines()]
    return [event["loss"] for event in events if "loss" in event]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "model_def"),
    [
        ("inputs = tf.keras.Input(shape=(28, 28), name='image')", "mnist_functional_api"),
        ("class MnistModel(tf.keras.Model):", "mnist_subclass"),
        (None, "mnist_spec.MnistElasticDLSpec"),
    ],
)
def test_model_of_the_documents_learns_digits(
    documents, digits: Path, tmp_path: Path, model: str | None, model_def: str
) -> None:
    code = documents.spec_file() if model is None else documents.model_file(model)
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    (zoo / f"{model_def.partition('.')[0]}.py").write_text(code)

    outcome = elasticdl.train(
        model_zoo=str(zoo),
        model_def=model_def,
        data=f"{digits}/train",
        validation_data=f"{digits}/test",
        num_epochs=12,
        minibatch_size=32,
        # Its validation accuracy falls by a tenth after some epochs, by how a machine rounds.
        best_metric="val_accuracy",
        restore_best_weights=True,
        output=str(tmp_path / "trained"),
    )

    first_epoch_loss = losses(tmp_path / "trained")[0]
    assert outcome.metrics["loss"] < first_epoch_loss / 2
    assert outcome.metrics["val_accuracy"] >= 0.95


def test_documented_command_and_python_code_request_the_same_job(documents) -> None:
    command = documents.block("elasticdl-high-level-api.md", "elasticdl train \\\n")
    call = documents.block("elasticdl-high-level-api.md", 'model_zoo="$HOME/work",')
    arguments = {
        keyword.arg: ast.literal_eval(keyword.value)
        for keyword in ast.parse(call).body[0].value.keywords
    }

    printed = CliRunner().invoke(cli, [*shlex.split(command.replace("\\\n", " "))[1:], "--dry_run"])

    assert printed.output.strip() == job_options.training_job(**arguments).to_json()


FINTECH = """
import keras
import numpy as np

class MyKerasModel(keras.Model):
    def __init__(self, hidden_units=(8,)):
        super().__init__()
        hidden = [keras.layers.Dense(n, activation="relu") for n in hidden_units]
        self.net = keras.Sequential([*hidden, keras.layers.Dense(1)])

    def call(self, inputs):
        return self.net(inputs)

    def default_loss(self, labels, predictions):
        return keras.losses.mean_squared_error(labels, predictions)

    def default_optimizer(self, learning_rate=0.1):
        return keras.optimizers.SGD(learning_rate)

def credit_data_processor(records):
    return np.stack([r["x"] for r in records]), np.stack([r["y"] for r in records])
"""


def test_the_commands_of_the_documents_run(documents, tmp_path: Path, monkeypatch) -> None:
    """Unchanged, except for the bucket, which is a folder here."""
    from elasticdl.data import recordio
    from elasticdl.data.example import encode

    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "fintech.py").write_text(FINTECH)
    for split in ("train", "test"):
        folder = tmp_path / "bucket" / "tony" / "imagenet" / split
        folder.mkdir(parents=True)
        with recordio.Writer(str(folder / "a.recordio")) as writer:
            for i in range(64):
                x = np.float32([i, 1, 2]) / 64
                writer.write(encode({"x": x, "y": x[:1]}))

    for begin in ("elasticdl train \\\n", "elasticdl predict \\\n"):
        command = documents.block("elasticdl-high-level-api.md", begin)
        command = command.replace("gs://bucket-name", str(tmp_path / "bucket"))
        result = CliRunner().invoke(cli, shlex.split(command.replace("\\\n", " "))[1:])
        assert result.exit_code == 0, result.output

    assert "Predicted 64 records" in result.output


def test_function_of_the_documents_prepares_pictures(
    documents, tmp_path: Path, monkeypatch
) -> None:
    from PIL import Image

    from elasticdl.data.sources import open_source

    for digit in (3, 7):
        folder = tmp_path / "pictures" / str(digit)
        folder.mkdir(parents=True)
        Image.fromarray(np.full((28, 28), 10 * digit, np.uint8)).save(folder / "a.png")
    model = "inputs = tf.keras.Input(shape=(28, 28), name='image')"
    (tmp_path / "mnist.py").write_text(documents.model_file(model))
    monkeypatch.chdir(tmp_path)

    command = "data prepare --model_zoo=. --model_def=mnist --input=pictures/*/*.png --output=out"
    result = CliRunner().invoke(cli, [*command.split(), "--no-shuffle", "--num_processes=1"])

    assert result.exit_code == 0, result.output
    records = open_source("out").read_records(0, 2, None)
    assert [(r["label"].item(), r["image"][0]) for r in records] == [(3, 30.0), (7, 70.0)]
