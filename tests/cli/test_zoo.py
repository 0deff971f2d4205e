"""`elasticdl zoo`: what a newcomer sees of the prebuilt models, and a first file of one's own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from elasticdl.cli.zoo import zoo
from elasticdl.errors import OutputTakenError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_list_shows_full_model_names_on_a_narrow_terminal(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    result = CliRunner().invoke(zoo, ["list"])

    for name in ("classifier.DNN", "regressor.DNN", "wide_and_deep.Classifier", "mnist", "cifar10"):
        assert f" {name} " in result.output
    assert "learning_rate=0.001" in result.output
    assert "thousands" in result.output


def test_list_loads_no_framework(run_python) -> None:
    listing = run_python(
        "import sys; from elasticdl.cli.zoo import zoo\n"
        "zoo(['list'], standalone_mode=False)\n"
        "print('keras' in sys.modules)"
    )

    assert listing.stdout.splitlines()[-1] == "False"


def test_show_prints_docs_params_and_source_location() -> None:
    result = CliRunner().invoke(zoo, ["show", "regressor.DNN"])

    assert "hidden_units: Width of each hidden layer" in result.output
    assert "label_scale=1.0" in result.output
    assert "regressor.py:" in result.output


def test_show_suggests_a_similar_name() -> None:
    with pytest.raises(UsageError, match="Did you mean 'regressor.DNN'"):
        CliRunner().invoke(zoo, ["show", "regresor.DNN"], catch_exceptions=False)


def test_init_writes_a_model_file_and_says_how_to_train_it(tmp_path: Path) -> None:
    result = CliRunner().invoke(zoo, ["init", str(tmp_path / "new")])

    assert "def input_fn(records)" in (tmp_path / "new" / "my_model.py").read_text()
    assert f"--model_zoo={tmp_path / 'new'} --model_def=my_model" in result.output


def test_init_does_not_overwrite_an_existing_file(tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text("mine")

    with pytest.raises(OutputTakenError, match="was not changed"):
        CliRunner().invoke(zoo, ["init", str(tmp_path)], catch_exceptions=False)

    assert (tmp_path / "my_model.py").read_text() == "mine"


def test_closing_the_output_pipe_early_is_not_an_error():
    # As in `elasticdl zoo list | head`, without the chance that all of it fits into the pipe.
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "elasticdl.cli.main", "zoo", "list"],
        stdout=writing, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writing)

    assert (done.returncode, done.stderr) == (0, "")
