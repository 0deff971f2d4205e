"""`--validation_split` trains on one side of the data and evaluates on the other, everywhere."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.notes import Notes

import elasticdl
from elasticdl import api
from elasticdl.data.record_source import RecordFile
from elasticdl.data.split import SplitNumbering
from elasticdl.errors import OutputTakenError, UsageError

MODEL = """
import numpy as np, torch

def data_schema():
    return [
        {"name": "x", "shape": [1], "dtype": "float32"},
        {"name": "number", "shape": [], "dtype": "int64"},
    ]

def input_fn(records, mode):
    with open(LOG, "a") as log:
        for r in records:
            print(mode.value, int(r["number"]), file=log)
    x = np.stack([r["x"] for r in records])
    return x, 2 * x

def loss(outputs, labels):
    return torch.nn.functional.mse_loss(outputs, labels)

def custom_model():
    return torch.nn.Linear(1, 1)

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""
NUMBERS = range(200)


@pytest.fixture
def train(tmp_path):
    """Return a function that trains on records which know their number."""
    (tmp_path / "model.py").write_text(f"LOG = {str(tmp_path / 'log')!r}\n{MODEL}")
    (tmp_path / "data").mkdir()
    for part in range(4):
        with (tmp_path / "data" / f"part-{part}.csv").open("w") as file:
            writer = csv.writer(file)
            writer.writerow(["x", "number"])
            writer.writerows([i / 100, i] for i in NUMBERS[part * 50 : (part + 1) * 50])

    def train(**more):
        options = {
            "data": str(tmp_path / "data"), "validation_split": 0.2, "num_epochs": 2,
            "minibatch_size": 16, **more,
        }  # fmt: skip
        return elasticdl.train(
            model_zoo=str(tmp_path), model_def="model", output=str(tmp_path / "out"), **options
        )

    return train


def held_out():
    files = [RecordFile(f"part-{part}.csv", 50) for part in range(4)]
    numbering = SplitNumbering(files, 0.2, held_out=True)
    return set(numbering.span(0, numbering.num_records).tolist())


def used(tmp_path):
    """Return the numbers of the records used for each purpose."""
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    return {mode: {int(n) for m, n in lines if m == mode} for mode, _ in lines}


def test_one_side_is_used_for_training_and_the_other_for_evaluation(train, tmp_path):
    outcome = train()

    assert used(tmp_path) == {"training": set(NUMBERS) - held_out(), "evaluation": held_out()}
    assert "val_loss" in outcome.metrics


def test_a_resumed_training_keeps_the_split(train, tmp_path):
    whole = train()
    Path(tmp_path / "out").rename(tmp_path / "whole")
    Path(tmp_path / "log").unlink()
    train(max_steps=7, seed=0)

    resumed = train()

    assert resumed.metrics == whole.metrics
    assert used(tmp_path) == {"training": set(NUMBERS) - held_out(), "evaluation": held_out()}
    assert api.audit(tmp_path / "out").clean


def test_another_split_is_another_job(train):
    train(max_steps=1)

    for other in ({"validation_split": 0.3}, {"validation_split": None}):
        with pytest.raises(OutputTakenError, match=r"validation_split: 0.2 in the folder, "):
            train(**other)


def test_evaluate_uses_the_held_out_records(train, tmp_path):
    trained = train()
    model, data = str(tmp_path / "out"), str(tmp_path / "data")

    outcome = elasticdl.evaluate(
        trained_model=model, data=data, validation_split=0.2, report=str(tmp_path / "report")
    )

    assert outcome.metrics["loss"] == pytest.approx(trained.metrics["val_loss"])
    keys = pq.read_table(tmp_path / "report" / "report.parquet").column(0).to_pylist()
    parts = (key.removesuffix(".csv").split(".csv:") for key in keys)
    assert {int(file[-1]) * 50 + int(number) for file, number in parts} == held_out()


def test_the_sizes_of_both_sides_are_shown_at_the_start(train):
    notes = Notes()

    train(max_steps=1, reporter=notes)

    assert "validation_split=0.2: 157 records to train on, 43 held out." in notes.texts


@pytest.fixture
def evaluate(tmp_path):
    def evaluate(data=None, share=0.2):
        notes = Notes()
        elasticdl.evaluate(
            trained_model=str(tmp_path / "out"), validation_split=share, reporter=notes,
            data=str(tmp_path / "data") if data is None else data,
        )  # fmt: skip
        return notes.texts

    return evaluate


def test_a_smaller_share_evaluates_some_of_the_held_out_records(train, evaluate):
    train(max_steps=1)

    assert evaluate(share=0.1) == []


@pytest.mark.parametrize(("split", "held_out"), [(0.2, "only 0.2 of the data"), (None, "nothing")])
def test_evaluating_on_training_records_is_refused(train, evaluate, split, held_out):
    train(max_steps=1, validation_split=split)

    with pytest.raises(UsageError, match=f"validation_split=0.3: .* trained on .* {held_out}"):
        evaluate(share=0.3)


def test_data_in_another_folder_has_the_same_held_out_records(train, evaluate, tmp_path):
    train(max_steps=1)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")

    assert evaluate(str(tmp_path / "copy")) == []


def test_the_training_data_under_other_names_gives_a_warning(train, evaluate, tmp_path):
    train(max_steps=1)
    (tmp_path / "copy").mkdir()
    for file in (tmp_path / "data").iterdir():
        shutil.copy(file, tmp_path / "copy" / f"new-{file.name}")

    [note] = evaluate(str(tmp_path / "copy"))

    assert note.startswith("WARNING: the data is not the data of the training")
    assert "its files have other names. So validation_split=0.2 does not hold out" in note
    assert note.endswith("was trained on most of these.")


def test_other_contents_under_the_same_names_give_a_warning(train, evaluate, tmp_path):
    train(max_steps=1)
    file = tmp_path / "data" / "part-0.csv"
    header, *rows = file.read_text().splitlines()
    file.write_text("\n".join([header, *rows[::-1]]) + "\n")

    [note] = evaluate()

    assert "may have been trained on most of these." in note


def test_other_data_in_memory_gives_a_warning(train, evaluate):
    x = np.arange(200, dtype=np.float32).reshape(-1, 1) / 100
    data = {"x": x, "number": np.arange(200)}
    train(data=data, max_steps=1)

    assert evaluate(data) == []
    [note] = evaluate({"number": np.arange(200), "x": x})
    assert "(data in memory)" in note


def test_in_memory_data_can_be_split(train, tmp_path):
    x = np.arange(200, dtype=np.float32).reshape(-1, 1) / 100

    outcome = train(data={"x": x, "number": np.arange(200)})

    sides = used(tmp_path)
    assert sides["training"] | sides["evaluation"] == set(NUMBERS)
    assert not sides["training"] & sides["evaluation"]
    assert "val_loss" in outcome.metrics


def test_the_audit_names_records_by_their_number_in_the_file(train, tmp_path):
    train(max_steps=3)
    log = tmp_path / "out" / "events.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    doubled = next(event for event in events if event["event"] == "step_committed")
    doubled["rows"] = doubled["rows"] * 2
    log.write_text("".join(f"{json.dumps(event)}\n" for event in events))

    wrong = next(iter(api.audit(tmp_path / "out").wrong_batches()))

    assert len(wrong.records) == 16
    for place in wrong.records:
        assert place.record == int(Path(place.file).stem[-1]) * 50 + place.number
        assert place.record not in held_out()


@pytest.mark.parametrize("split", [0, 1, -0.2, "a fifth", 20])
def test_an_invalid_share_is_refused(train, split):
    with pytest.raises(UsageError, match=f"^validation_split={split}: expected a share of the"):
        train(validation_split=split)


def test_validation_data_and_a_split_exclude_each_other(train):
    with pytest.raises(UsageError, match="validation_split=0.2 and validation_data= both define"):
        train(validation_data="more")


def test_a_model_that_makes_its_own_batches_is_refused(train, tmp_path):
    code = (tmp_path / "model.py").read_text()
    loader = (
        "\ndef train_dataloader(data):\n"
        "    x = torch.ones(64, 1)\n"
        "    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x), 16)\n"
    )
    (tmp_path / "model.py").write_text(code.replace("def input_fn", "def _unused") + loader)

    with pytest.raises(UsageError, match=r"^validation_split=0.2 divides records, but .*model.py"):
        train()
