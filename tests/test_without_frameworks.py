"""What works without a framework, and what an error says where one is needed.

The commands run as in an environment without the frameworks: `sitecustomize.py` hides them from
each process, also from those that a command starts.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.page.conftest import as_log, finished_events

from elasticdl.errors import MissingExtraError, framework_needed, missing_framework

HIDE = """
from importlib.machinery import PathFinder

HIDDEN = {"keras", "lightning", "pytorch_lightning", "tensorflow", "tf_keras", "torch", "torchft"}
find = PathFinder.find_spec


def find_spec(fullname, path=None, target=None):
    return None if fullname.partition(".")[0] in HIDDEN else find(fullname, path, target)


PathFinder.find_spec = find_spec
"""
TORCH_MODEL = '''
"""A PyTorch model."""

import torch


def custom_model():
    return torch.nn.Linear(1, 1)
'''
LATE_MODEL = '''
"""A model file that imports its framework in a function."""

import numpy as np


def custom_model():
    import keras

    return keras.Sequential([keras.layers.Dense(1)])


def input_fn(records):
    return np.ones((len(records), 1)), np.ones((len(records), 1))


def loss(labels, predictions):
    return predictions


def optimizer():
    return "sgd"
'''
NAMED_LOSS = LATE_MODEL.replace(
    "def loss(labels, predictions):\n    return predictions", 'loss = "mse"'
)
LINES_MODEL = '''
"""Records of text files."""

import numpy as np


def custom_model():
    raise NotImplementedError


def data_schema():
    return [{"name": "size", "shape": [1], "dtype": "int64"}]


def prepare_data_for_a_single_file(filename):
    return {"size": np.int64(len(open(filename).read()))}
'''
TENSORFLOW = "pip install 'elasticdl[tensorflow]'"
TORCH = "pip install 'elasticdl[torch]'"


class Bare:
    """A folder, and commands that find no framework."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *arguments: str) -> tuple[int, str]:
        hidden = str(self.folder / "hidden")
        result = subprocess.run(
            [sys.executable, "-m", "elasticdl.cli.main", *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([hidden, *sys.path])},
            check=False,
            capture_output=True,
            text=True,
            timeout=100,
        )
        return result.returncode, result.stdout + result.stderr


@pytest.fixture(scope="module")
def bare(tmp_path_factory, digits) -> Bare:
    folder = tmp_path_factory.mktemp("bare")
    (folder / "data").symlink_to(digits)
    (folder / "hidden").mkdir()
    (folder / "hidden" / "sitecustomize.py").write_text(HIDE)
    (folder / "zoo").mkdir()
    for name, text in [
        ("of_torch", TORCH_MODEL),
        ("late", LATE_MODEL),
        ("named_loss", NAMED_LOSS),
        ("lines", LINES_MODEL),
    ]:
        (folder / "zoo" / f"{name}.py").write_text(text)
    (folder / "jobs" / "one").mkdir(parents=True)
    (folder / "jobs" / "one" / "events.jsonl").write_bytes(as_log(finished_events()))
    (folder / "in").mkdir()
    (folder / "in" / "a.txt").write_text("one")
    return Bare(folder)


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "data sample iris --output=iris",
        "data show data/test --limit=1",
        "data index data/train",
        "data prepare --model_zoo=zoo --model_def=lines --input=in/*.txt --output=prepared",
        "zoo list",
        "zoo show mnist",
        "zoo init my_zoo",
        "job list jobs",
        "job show jobs/one",
        "federated keys keys --host=localhost --party=one",
    ],
)
def test_commands_that_train_nothing_need_no_framework(bare, command):
    code, output = bare.run(*command.split())

    assert code == 0, output


def test_statements_that_train_nothing_need_no_framework(bare):
    code, output = bare.run("sql", "--database=duckdb://", "--format=csv", "SELECT 20 + 2 AS n;")

    assert code == 0, output
    assert "22" in output


def test_cluster_check_needs_no_framework(bare, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(bare.folder / "no_such_file"))

    code, output = bare.run("cluster", "check")

    assert code == 2
    assert "kubeconfig" in output


OF_ZOO = "train --model_zoo=zoo --data=data/train --output=out"


@pytest.mark.parametrize(
    ("command", "where", "install"),
    [
        ("train --model_def=mnist --data=data/train --output=out", "mnist.py", TENSORFLOW),
        ("federated init parties --data=data/train --model_def=mnist", "mnist.py", TENSORFLOW),
        (f"{OF_ZOO} --model_def=of_torch", "of_torch.py", TORCH),
        (f"{OF_ZOO} --model_def=late", "late.py", TENSORFLOW),
        (f"{OF_ZOO} --model_def=named_loss", "named_loss.py", TENSORFLOW),
        (
            "sql --database=duckdb:// 'SELECT 1 AS a, 2.0 AS y TRAIN regressor.DNN INTO m;'",
            "regressor.py",
            TENSORFLOW,
        ),
    ],
)
def test_a_missing_framework_of_a_model_has_an_install_command(bare, command, where, install):
    code, output = bare.run(*shlex.split(command))

    assert code == 2, output
    assert install in output
    assert where in output
    assert "Traceback" not in output


def test_the_extra_of_a_framework_is_found_by_its_module():
    error = ModuleNotFoundError("No module named 'torch'", name="torch")

    assert str(missing_framework(error, "It")).endswith(TORCH)


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'torch.nothing'", name="torch.nothing"),
        ModuleNotFoundError("No module named 'mine'", name="mine"),
        ImportError("cannot import name 'x'", name="torch"),
    ],
)
def test_other_import_errors_are_not_mistaken_for_a_missing_framework(error):
    assert missing_framework(error, "It") is None
    with pytest.raises(type(error)), framework_needed("It"):
        raise error


def test_a_missing_framework_raises_missing_extra_error():
    with pytest.raises(MissingExtraError, match="This model needs the package 'keras'"):  # noqa: SIM117
        with framework_needed("This model"):
            raise ModuleNotFoundError(name="keras")
