"""A table as people have it trains a prebuilt model, and predictions are in its own words."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.engines.test_in_process import assert_same_bits, weights
from tests.notes import Notes

import elasticdl
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import UsageError


def write(path: Path, number: int, *, seed: int = 1, with_label: bool = True) -> str:
    """Write a table as a German spreadsheet exports it: gaps, words, dates, decimal commas."""
    draw = random.Random(seed)
    lines = ["Nr;Größe;Preis;Stadt;Datum" + ";Kauf" * with_label]
    for at in range(number):
        buys = draw.random() < 0.5
        price = draw.choice(["", f"{10 + 80 * buys + draw.randrange(9)},5"])
        city = "Köln" if buys else draw.choice(["Bonn", ""])
        date = draw.choice(["", f"2024-01-{draw.randrange(10, 30)}"])
        line = f"{at};{draw.randrange(150, 200)};{price};{city};{date}"
        lines.append(line + (";ja" if buys else ";nein") * with_label)
    path.write_text("\r\n".join(lines), encoding="cp1252")
    return str(path)


def train(data: str, output: Path, **options: Any) -> Any:
    return elasticdl.train(
        **{
            "model_def": "classifier.DNN",
            "params": {"label": "Kauf", "hidden_units": [8], "learning_rate": 0.05},
            "data": data,
            "output": str(output),
            "minibatch_size": 16,
            "reporter": Silent(),
            **options,
        }
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return a model that was trained in two runs, and the notes of the first one."""
    folder = tmp_path_factory.mktemp("trained")
    data, notes = write(folder / "a.csv", 120), Notes()
    train(data, folder / "out", num_epochs=8, max_steps=5, reporter=notes)
    train(data, folder / "out", num_epochs=8)
    return folder / "out", notes.texts


def test_predictions_are_label_strings(trained: tuple[Path, list[str]], tmp_path: Path) -> None:
    new = write(tmp_path / "new.csv", 40, seed=2, with_label=False)

    elasticdl.predict(
        trained_model=str(trained[0]), data=new, output=str(tmp_path / "p.csv"), reporter=Silent()
    )

    with (tmp_path / "p.csv").open() as file:
        found = [row["prediction"] for row in csv.DictReader(file)]
    with Path(write(tmp_path / "same.csv", 40, seed=2)).open(encoding="cp1252") as file:
        right = [row["Kauf"] for row in csv.DictReader(file, delimiter=";")]
    assert set(found) <= {"ja", "nein"}
    assert sum(a == b for a, b in zip(found, right, strict=True)) > 32


def test_a_column_that_is_not_a_feature_is_named(trained: tuple[Path, list[str]]) -> None:
    assert "Column 'Nr' is left out: it looks like an identifier." in trained[1]


def test_classes_that_differ_only_by_case_or_space_are_named(tmp_path: Path) -> None:
    rows = [("1", "cat"), ("2", "Cat"), ("3", "dog"), ("4", '"cat "')] * 5
    data = tmp_path / "a.csv"
    data.write_text("\n".join(["x,Kauf", *(",".join(row) for row in rows)]) + "\n")
    notes = Notes()

    train(str(data), tmp_path / "out", reporter=notes)

    (note,) = [line for line in notes.texts if "classes" in line]
    assert note.startswith("'Cat', 'cat' and 'cat ' are 3 classes, but differ only by")


def test_the_trained_model_has_the_completed_params_and_the_id_of_the_users_job(
    trained: tuple[Path, list[str]],
) -> None:
    description = load_trained_model(str(trained[0])).description
    params = json.loads(description.model_def_params)

    assert params["classes"] == ["ja", "nein"]
    assert [each["column"] for each in params["columns"]] == ["Größe", "Preis", "Stadt", "Datum"]
    assert elasticdl.load(str(trained[0])) is not None
    assert json.loads((trained[0] / "job.json").read_text())["model"]["params"].keys() == {
        "label", "hidden_units", "learning_rate",
    }  # fmt: skip


def test_a_resumed_training_uses_the_features_of_its_first_run(
    trained: tuple[Path, list[str]], tmp_path: Path
) -> None:
    train(write(tmp_path / "a.csv", 120), tmp_path / "out", num_epochs=8)

    assert_same_bits(weights(trained[0]), weights(tmp_path / "out"))


def test_a_label_that_the_table_lacks_is_an_error_before_training(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no column 'kauf'.*'Kauf'; did you mean 'Kauf'\?"):
        train(write(tmp_path / "a.csv", 20), tmp_path / "out", params={"label": "kauf"})


@pytest.mark.parametrize(
    ("columns", "label", "message"),
    [
        ("pricee", "label", r"columns has 'pricee', .* of the table; did you mean 'price'\?"),
        ("price", "lable", r"no column 'lable', the label; .*'label'; did you mean 'label'\?"),
    ],
)
def test_a_misspelt_column_is_corrected_if_no_param_is_derived(
    tmp_path: Path, columns: str, label: str, message: str
) -> None:
    (tmp_path / "a.csv").write_text("price,label\n" + "1.5,0\n2.5,1\n" * 8)

    with pytest.raises(UsageError, match=message):
        elasticdl.train(
            data=str(tmp_path / "a.csv"),
            model_def="classifier.DNN",
            params={
                "columns": [{"kind": "number", "column": columns}],
                "classes": [0, 1],
                "label": label,
            },
            output=str(tmp_path / "out"),
        )


def test_a_feature_of_several_columns_is_accepted_before_data_is_stored(tmp_path: Path) -> None:
    trained = elasticdl.train(
        data={"x_0": [0.5, 1.5] * 4, "x_1": [2.5, 3.5] * 4, "label": ["a", "b"] * 4},
        model_def="classifier.DNN",
        params={
            "columns": [{"kind": "number", "column": "x", "size": 2}],
            "classes": ["a", "b"],
            "hidden_units": [2],
        },
        output=str(tmp_path / "out"),
        reporter=Silent(),
    )

    assert trained.step == 1
