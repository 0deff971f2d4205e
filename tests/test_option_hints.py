"""Options of other tools are answered with those of ElasticDL."""

from __future__ import annotations

import re

import click
import pytest

import elasticdl
from elasticdl import option_hints
from elasticdl.cli.main import cli, main
from elasticdl.errors import UsageError

HINTED = {
    "epochs": "Use --num_epochs.",
    "batch-size": "Use --batch_size.",
    "lr": "--params='lr=...'",
    "label": "prebuilt table models: use --params='label=\"NAME\"' with the name of the column",
    "callbacks": "returned by callbacks() in the model file",
    "devices": "--num_workers trains on several workers",
    "resume": "The same command resumes training",
}


@pytest.mark.parametrize("name", HINTED)
def test_the_command_line_names_the_replacement_of_an_option(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", f"--{name}=1"])

    shown = " ".join(capsys.readouterr().err.split())
    assert ended.value.code == 2
    assert f"There is no option --{name}. " in shown
    assert HINTED[name] in shown


def test_other_unknown_options_get_the_nearest_by_spelling(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--num_epoch=2"])

    assert "There is no option --num_epoch. Did you mean --num_epochs?" in capsys.readouterr().err


def test_hints_never_name_options_that_a_command_lacks(capsys):
    with pytest.raises(SystemExit):
        main(["evaluate", "--epochs=1"])

    assert "--num_epochs" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("epochs", "There is no option 'epochs'. Use num_epochs."),
        ("callbacks", "There is no option 'callbacks'. Callbacks are returned by callbacks()"),
        ("verbose", "Use quiet=True, or reporter= to show the progress in your own way."),
    ],
)
def test_python_functions_name_the_replacement_too(name, sentence):
    with pytest.raises(UsageError, match=re.escape(sentence)):
        elasticdl.train(model_def="mnist", data="x", output="y", **{name: 1})


def test_all_options_are_listed_for_an_unknown_one():
    with pytest.raises(
        UsageError, match=r"(?s)There are:\n.*num_epochs.*validation_split"
    ) as caught:
        elasticdl.train(model_def="mnist", data="x", output="y", frobnicate=1)

    assert max(map(len, str(caught.value).splitlines())) <= 100


def test_hints_name_options_that_exist():
    train = cli.get_command(click.Context(cli), "train")
    known = {name for parameter in train.params for name in parameter.opts} | {"--trained_model"}
    texts = [option_hints.hint(name) for name in option_hints._HINTS]

    assert set(re.findall(r"--[a-z_]+", " ".join(texts))) - known == set()
    assert {f"--{name}" for name in option_hints._HINTS} & known == set()


def test_a_similar_option_is_suggested_but_never_help(capsys) -> None:
    from elasticdl.cli.main import _run

    assert _run(["evaluate", "--model=m1", "--data=d"], debug=False) == 2

    said = capsys.readouterr().err
    assert "There is no option --model. Did you mean --trained_model?" in said

    assert _run(["evaluate", "--hlp", "--data=d"], debug=False) == 2

    assert "Did you mean" not in capsys.readouterr().err
