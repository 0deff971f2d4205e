"""Updates of a few numbers; jobs of federations over the small model of the engines' tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.engines.conftest import MODEL, write_records

from elasticdl.engines.federated.simulation import simulate
from elasticdl.engines.federated.simulation.simulate import SimulatedMember
from elasticdl.engines.federated.strategies.updates import PartyUpdate
from elasticdl.engines.progress_bar import Silent
from elasticdl.job import Federation, Job, ModelReference, TrainingOptions

if TYPE_CHECKING:
    from collections.abc import Callable


TORCH_MODEL = """
import sys

import numpy as np
import torch
from torch import nn


def refuse(*_, **__):
    raise RuntimeError("not looked at in these tests, and it takes seconds of each aggregator")


# The process of the tests may have others to export.
if "pytest" not in sys.modules:
    torch.export.export = refuse


def custom_model(rate=0.1):
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Dropout(rate),
                         nn.Linear(8, 3))


def data_schema():
    return [
        {"name": "x", "shape": [4], "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    return np.stack([r["x"] for r in records]), np.stack([r["label"] for r in records])


def loss(output, labels):
    return nn.functional.cross_entropy(output, labels.flatten())


def optimizer(parameters, learning_rate=0.05):
    return torch.optim.Adam(parameters, learning_rate)


def eval_metrics_fn():
    return {"accuracy": lambda labels, output: (output.argmax(1) == labels.flatten()).float()}
"""


@pytest.fixture(scope="session")
def update() -> Callable[..., PartyUpdate]:
    """Return a function: party, the numbers of its one array, and how many examples it has."""

    def make(party, numbers, num_examples=1, dtype=np.float32):
        return PartyUpdate(party, {"w": np.asarray(numbers, dtype)}, num_examples)

    return make


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model in each framework, and the records of three parties."""
    folder = tmp_path_factory.mktemp("federated")
    (folder / "zoo").mkdir()
    (folder / "zoo" / "small.py").write_text(MODEL)
    (folder / "zoo" / "torch_small.py").write_text(TORCH_MODEL)
    for number, num_records in enumerate([96, 40, 64]):
        write_records(folder / f"party{number}.recordio", num_records, seed=number)
    write_records(folder / "validation.recordio", 50, seed=9)
    return folder


@pytest.fixture
def member(place):
    """Return what makes a party to simulate, by its number."""

    def make(number, **changes):
        return SimulatedMember(f"p{number}", str(place / f"party{number}.recordio"), **changes)

    return make


def make_job(place, output, model_def="small", params=None, **federation):
    """Return a federated job; fields of the federation by name."""
    federation = {"num_rounds": 2, "num_parties": 2, "join_timeout_s": 5.0, **federation}
    return Job(
        command="train",
        data="",
        output=str(output),
        model=ModelReference(str(place / "zoo"), model_def, params=params or {}),
        training=TrainingOptions(minibatch_size=16, seed=7),
        federation=Federation(**federation),
    )


@pytest.fixture
def job(place, tmp_path):
    """Return what makes a federated job, by its output; see `make_job`."""

    def make(output="out", *model, **options):
        return make_job(place, tmp_path / output, *model, **options)

    return make


@pytest.fixture(scope="session")
def run():
    """Return what simulates a job with some parties, saying nothing."""

    def run_it(job, *members):
        return simulate.train(job, Silent(), members)

    return run_it


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    assert [
        path for path in one if np.asarray(one[path]).tobytes() != np.asarray(other[path]).tobytes()
    ] == []
