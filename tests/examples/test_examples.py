"""Every example trains as its own first lines say, only shorter, and predicts from its folder."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path

import pytest

import elasticdl

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
FILES = sorted(EXAMPLES.glob("*.py"))


def commands(path: Path) -> list[list[str]]:
    """Return the commands in a file's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    lines = docstring.replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.strip().startswith("elasticdl ")]


def training_arguments(path: Path) -> dict[str, str]:
    (command,) = [words for words in commands(path) if words[1] == "train"]
    return dict(word.removeprefix("--").split("=", 1) for word in command[2:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sample", "accuracy", "shorter"),
    [
        ("mnist_functional_api", "digits", 0.95, {"num_epochs": 3}),
        ("mnist_subclass", "digits", 0.9, {"num_epochs": 3}),
        ("mnist_spec", "digits", 0.9, {"num_epochs": 3}),
        ("mnist_torch", "digits", 0.95, {"num_epochs": 3}),
        ("cifar10_functional_api", "patches", 0.2, {"num_epochs": 2}),
        ("cifar10_subclass", "patches", 0.2, {"num_epochs": 2}),
        ("iris", "iris", 0.9, {}),
    ],
)
def test_example_learns_as_it_says(
    name: str, sample: str, accuracy: float, shorter: dict, tmp_path: Path, request
) -> None:
    data = request.getfixturevalue(sample)
    arguments = training_arguments(EXAMPLES / f"{name}.py") | shorter
    arguments |= {"model_zoo": str(EXAMPLES), "output": str(tmp_path / "trained")}
    arguments |= {"data": f"{data}/train", "validation_data": f"{data}/test"}

    outcome = elasticdl.train(**arguments)

    assert outcome.metrics["val_accuracy"] >= accuracy


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_example_says_how_to_train_it(path: Path) -> None:
    arguments = training_arguments(path)

    assert arguments["model_def"].partition(".")[0] == path.stem


def test_every_example_is_in_the_overview() -> None:
    overview = (EXAMPLES / "README.md").read_text()

    assert [path.name for path in FILES if f"`{path.name}`" not in overview] == []


@pytest.mark.slow
def test_another_loss_of_the_folder_takes_the_place_of_the_class_s_own(
    iris: Path, tmp_path: Path
) -> None:
    arguments = training_arguments(EXAMPLES / "iris.py")
    arguments |= {"model_zoo": str(EXAMPLES), "data": f"{iris}/train", "num_epochs": 3}

    own = elasticdl.train(**arguments | {"output": str(tmp_path / "own")})
    other = elasticdl.train(
        **arguments | {"output": str(tmp_path / "other"), "loss": "iris.cautious_loss"}
    )

    assert own.metrics["loss"] != other.metrics["loss"]
