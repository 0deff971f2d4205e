"""Every example runs as its first lines say, and has a row in the overview.

Model files train here for fewer epochs. The others run as they are, in a folder that has nothing
but the examples.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import elasticdl

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
# `make demo` has a text of its own.
FILES = sorted({*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.s*")} - {EXAMPLES / "demo.sh"})
OVERVIEW = EXAMPLES / "README.md"
PROGRAMS = ("elasticdl ", "python ", "bash ", "mkdir ")


def first_lines(path: Path) -> str:
    """Return a file's docstring, or its leading comments without their marks."""
    if path.suffix == ".py":
        return ast.get_docstring(ast.parse(path.read_text())) or ""
    lines = path.read_text().splitlines()
    end = next(i for i, line in enumerate(lines) if not line.startswith(("#", "--")))
    return "\n".join(line.lstrip("#-!") for line in lines[:end])


def commands(path: Path) -> list[list[str]]:
    """Return the commands in a file's first lines."""
    lines = first_lines(path).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.strip().startswith(PROGRAMS)]


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
def test_example_reaches_the_stated_accuracy(
    name: str, sample: str, accuracy: float, shorter: dict, tmp_path: Path, request
) -> None:
    data = request.getfixturevalue(sample)
    arguments = training_arguments(EXAMPLES / f"{name}.py") | shorter
    arguments |= {"model_zoo": str(EXAMPLES), "output": str(tmp_path / "trained")}
    arguments |= {"data": f"{data}/train", "validation_data": f"{data}/test"}

    outcome = elasticdl.train(**arguments)

    assert outcome.metrics["val_accuracy"] >= accuracy


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "dataframe.py",
        "employees.sql",
        "federated.sh",
        "hugging_face.py",
        "kubernetes.sh",
        "lightning_digits.py",
        "reports.py",
        "saved_model/model.yml",
        "shapes.py",
        "sql_client.py",
        "torch_dataset.py",
        "torch_recipe.py",
        "tracking.py",
        "wine_table.py",
        pytest.param("workers.py", marks=pytest.mark.ray),
    ],
)
def test_commands_of_an_example_run(name: str, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    for command in commands(EXAMPLES / name):
        result = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            check=False,
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, f"{shlex.join(command)}\n{result.stdout}{result.stderr}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_example_says_how_to_run_it(path: Path) -> None:
    words = [word for command in commands(path) for word in command]

    assert {f"examples/{path.name}", f"--model_def={path.stem}"} & {
        word.partition(".")[0] if word.startswith("--model_def=") else word for word in words
    }


def test_every_example_is_in_the_overview() -> None:
    overview = OVERVIEW.read_text()
    folders = [path for path in EXAMPLES.iterdir() if path.is_dir() and path.name[0] != "_"]
    names = [path.name for path in FILES] + [f"{path.name}/" for path in folders]

    assert [name for name in names if f"`{name}`" not in overview] == []


def test_links_of_the_overview_are_valid() -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", OVERVIEW.read_text())

    assert [target for target in targets if not (EXAMPLES / target).exists()] == []


@pytest.mark.slow
def test_another_loss_of_the_folder_can_override_that_of_the_class(
    iris: Path, tmp_path: Path
) -> None:
    arguments = training_arguments(EXAMPLES / "iris.py")
    arguments |= {"model_zoo": str(EXAMPLES), "data": f"{iris}/train", "num_epochs": 3}

    own = elasticdl.train(**arguments | {"output": str(tmp_path / "own")})
    other = elasticdl.train(
        **arguments | {"output": str(tmp_path / "other"), "loss": "iris.cautious_loss"}
    )

    assert own.metrics["loss"] != other.metrics["loss"]
