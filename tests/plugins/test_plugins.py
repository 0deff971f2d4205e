"""A package of somebody else's adds a dialect, a format, a tracker and an engine.

`package/` is such a package, installed by pip where only the processes of these tests look.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PACKAGE = Path(__file__).parent / "package"
EXPERIMENT = """
import torch

def batch(records):
    x = torch.tensor([[record["x"][0]] for record in records])
    y = torch.tensor([[record["y"][0]] for record in records])
    return x, y

EXPERIMENT = {
    "model": lambda: torch.nn.Linear(1, 1),
    "batch": batch,
    "loss": lambda outputs, labels: ((outputs - labels) ** 2).mean(),
    "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
}
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Return a folder with the package, as pip installs it."""
    target = tmp_path_factory.mktemp("installed")
    install(PACKAGE, target)
    return target


def install(package, target):
    subprocess.run(
        [
            sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install",
            "--no-deps", "--no-build-isolation", "--target", str(target), str(package),
        ],
        check=True,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "line.py").write_text(EXPERIMENT)
    (tmp_path / "data").mkdir()
    numbers = np.linspace(-1, 1, 64).tolist()
    for part in range(2):
        rows = [json.dumps({"x": x, "y": 2 * x + 1}) for x in numbers[part::2]]
        (tmp_path / "data" / f"part{part}.jsonl").write_text("\n".join(rows))
    return tmp_path


@pytest.fixture
def elasticdl(installed, folder):
    """Return a function that runs a command where the package is installed."""

    def run(*arguments, path=installed):
        return subprocess.run(
            [sys.executable, "-m", "elasticdl.cli.main", *arguments],
            check=False,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(path), *sys.path])},
            capture_output=True,
            text=True,
            timeout=100,
        )

    return run


TRAIN = ("train", "--model_zoo=zoo", "--model_def=line", "--num_epochs=20", "--no-page", "--quiet")


def test_dialect_format_tracker_and_engine_of_a_plugin_train_a_model(elasticdl, folder):
    options = ("--data=data", "--output=out", "--tracking_uri=notebook://page.md")

    done = elasticdl(*TRAIN, *options, "--engine=witnessed", "--minibatch_size=16")

    assert done.returncode == 0, done.stderr
    page = (folder / "page.md").read_text().splitlines()
    assert page[0] == "# out"
    assert [line.split(":")[0] for line in page[1:-1]] == [f"epoch {i}" for i in range(20)]
    assert float(page[-2].split()[-1]) < 0.01
    assert page[-1] == "FINISHED"
    job = json.loads((folder / "out" / "job.json").read_text())
    assert job["engine"] == "witnessed"
    assert (folder / "out.witnessed").read_text().startswith("train-")
    assert elasticdl("data", "show", "data").stdout.startswith("jsonl")


def test_a_training_of_a_plugin_engine_resumes_without_it(elasticdl, folder):
    options = ("--data=data", "--output=out", "--minibatch_size=16")
    assert elasticdl(*TRAIN, *options, "--engine=witnessed", "--max_steps=5").returncode == 0

    resumed = elasticdl(*TRAIN, *options)

    assert resumed.returncode == 0, resumed.stderr
    assert "Trained 80 steps" in resumed.stdout


def test_without_the_plugin_each_name_is_refused(elasticdl, folder):
    empty = folder / "nothing"

    options = (*TRAIN, "--data=data", "--output=out")
    for command, message in (
        ((*options, "--dialect=experiment"), "--dialect=experiment: expected one of"),
        (options, "--dialect=NAME"),
        (("data", "show", "data/part0.jsonl"), "is a JSON file, which cannot be read"),
        ((*options, "--engine=witnessed"), "no installed package has an engine"),
    ):
        refused = elasticdl(*command, path=empty)
        assert refused.returncode in {2, 3, 4}, refused.stderr
        assert message in " ".join(refused.stderr.split())
    unknown = elasticdl(*TRAIN, "--data=data", "--dialect=experimant", "--output=out")
    assert "Did you mean 'experiment'?" in unknown.stderr


def test_a_plugin_that_cannot_be_imported_is_named(elasticdl, installed, folder):
    broken = folder / "broken"
    install(PACKAGE, broken)
    (broken / "team_plugins" / "jsonl.py").write_text("import a_module_that_is_not_there\n")

    refused = elasticdl(*TRAIN, "--data=data", "--output=out", path=broken)

    assert refused.returncode == 2
    message = " ".join(refused.stderr.split())
    assert "the plugin team_plugins.jsonl of team-plugins 1.2 cannot be imported" in message
    assert "a_module_that_is_not_there" in message


def test_a_reader_of_a_plugin_satisfies_the_contract(installed, folder, monkeypatch):
    monkeypatch.syspath_prepend(str(installed))
    from team_plugins.jsonl import open_files

    from elasticdl.data.example import encode
    from elasticdl.testing.record_source import check_record_source

    rows = [
        json.loads(line)
        for part in range(2)
        for line in (folder / "data" / f"part{part}.jsonl").read_text().splitlines()
    ]
    records = [encode({k: np.atleast_1d(np.float32(v)) for k, v in row.items()}) for row in rows]
    check_record_source(
        open_files([str(folder / "data" / f"part{part}.jsonl") for part in range(2)], None), records
    )
