"""The same model is the same training, whichever way it is written and wherever it is trained.

200 steps over epoch boundaries with Adam, BatchNorm, dropout and shuffled records. Each cell of
the table is the greatest difference of an epoch's loss from the reference: a module, trained in
one process. Components of a session have an order of their own, which no seed of ours decides;
theirs is that of the file, and so is their reference's.
"""

import functools
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.engines.conftest import write_records
from tests.interchange import written

from elasticdl import api
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.engines.federated import simulate
from elasticdl.engines.federated.simulate import Member
from elasticdl.engines.progress import Silent
from elasticdl.events import EpochFinished, RoundFinished, read_events
from elasticdl.job import Federation, Job, TrainingOptions

NUM_RECORDS, MINIBATCH_SIZE, NUM_EPOCHS, SEED = 450, 16, 7, 3
TOLERANCE = 1e-5
REFERENCE = "elasticdl_module", "in_process"
ELASTIC = pytest.param("elastic", marks=[pytest.mark.ray, pytest.mark.slow])
ELASTIC_PROGRAM = Path(__file__).with_name("elastic.py")
ENGINES = ["in_process", ELASTIC, "federated"]


@pytest.fixture(scope="module")
def job_of(tmp_path_factory):
    """Return a function: dialect, engine and whether to shuffle -> a job in a folder of its own."""
    folder = tmp_path_factory.mktemp("interchange")
    data = str(write_records(folder / "train.recordio", NUM_RECORDS))

    def make(dialect, engine, shuffle):
        place = folder / f"{dialect}-{engine}-{shuffle}"
        place.mkdir()
        return Job(
            command="train",
            data=data,
            output=str(place / "out"),
            model=written.write(dialect, place, SEED),
            training=TrainingOptions(
                num_epochs=NUM_EPOCHS, minibatch_size=MINIBATCH_SIZE, seed=SEED, shuffle=shuffle
            ),
        )

    return make


def is_shuffled(dialect):
    return dialect != "abstractions"


@pytest.fixture(scope="module")
def elastic(job_of, tmp_path_factory):
    """Start to train in each dialect on workers; returns what waits for one, and gives its job."""
    folder = tmp_path_factory.mktemp("elastic")
    jobs = {dialect: job_of(dialect, "elastic", is_shuffled(dialect)) for dialect in written.ROWS}
    paths = {dialect: folder / f"{dialect}.json" for dialect in jobs}
    for dialect, path in paths.items():
        path.write_text(jobs[dialect].to_json())
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", ELASTIC_PROGRAM, *paths.values()], stdout=log, stderr=log
        )

    def wait_for(dialect):
        while not (ended := process.poll() is not None):
            if paths[dialect].with_suffix(".done").exists():
                break
            time.sleep(0.1)
        assert not ended or process.returncode == 0, (folder / "log").read_text()
        return jobs[dialect]

    yield wait_for
    process.terminate()
    process.wait(60)


@pytest.fixture(scope="module", autouse=True)
def elastic_beside_the_others(request):
    """Begin with what takes longest: most of it is waiting for processes to start."""
    tests = [item for item in request.session.items if item.path == request.path]
    if any(item.get_closest_marker("ray") for item in tests):
        request.getfixturevalue("elastic")


@pytest.fixture(scope="module")
def trained(job_of, request):
    """Return a function: dialect, engine and whether to shuffle -> losses and weights."""

    @functools.cache
    def train(dialect, engine, shuffle):
        if engine == "elastic":
            job = request.getfixturevalue("elastic")(dialect)
        elif engine == "federated":
            job = job_of(dialect, engine, shuffle)
            federated = replace(job, data="", federation=Federation(num_rounds=NUM_EPOCHS))
            simulate.train(federated, Silent(), [Member("alone", job.data)])
        else:
            job = job_of(dialect, engine, shuffle)
            api.run(job, Silent())
        kind = RoundFinished if engine == "federated" else EpochFinished
        log = read_events(Path(job.output) / "events.jsonl")
        losses = [event.metrics["loss"] for event in log if isinstance(event, kind)]
        assert len(losses) == NUM_EPOCHS
        return losses, dict(load_trained_model(job.output).params)

    return train


@pytest.fixture
def difference(trained, record_property):
    """Return a function: dialect, engine -> the greatest difference from the reference."""

    def measure(dialect, engine):
        shuffle = is_shuffled(dialect)
        reference, _ = trained(*REFERENCE, shuffle)
        assert reference[-1] < reference[0] / 2
        losses, _ = trained(dialect, engine, shuffle)
        found = float(np.max(np.abs(np.subtract(losses, reference))))
        record_property("interchange", (dialect, engine, found))
        return found

    return measure


def test_it_is_two_hundred_steps():
    assert -(-NUM_RECORDS // MINIBATCH_SIZE) * NUM_EPOCHS >= 200


@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dialect", written.ROWS)
def test_a_model_trains_the_same_in_each_dialect_and_engine(dialect, engine, difference):
    assert difference(dialect, engine) <= TOLERANCE


def test_a_module_with_the_later_names_trains_the_same(difference):
    assert difference(written.LATER_NAMES, "in_process") <= TOLERANCE


@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ENGINES[1:])
def test_a_model_has_the_same_weights_from_each_engine(engine, trained):
    _, expected = trained(*REFERENCE, True)
    _, found = trained(REFERENCE[0], engine, True)

    assert found.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_allclose(found[path], array, rtol=0, atol=TOLERANCE, err_msg=path)


def test_the_tolerance_tells_another_order_of_records(trained):
    ours, _ = trained(*REFERENCE, True)
    other, _ = trained(*REFERENCE, False)

    assert np.max(np.abs(np.subtract(ours, other))) > 100 * TOLERANCE
