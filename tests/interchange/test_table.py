"""The same model is the same training, whichever way it is written and wherever it is trained.

200 steps over epoch boundaries with Adam, BatchNorm, dropout and shuffled records. Each cell of
the table is the greatest difference of an epoch's loss from the reference: a module, trained in
one process. Components of a session have an order of their own, which no seed of ours decides;
theirs is that of the file, and so is their reference's.
"""

import functools
import warnings
from dataclasses import replace

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
from elasticdl.job import Federation, Job, TrainingOptions, Workers

NUM_RECORDS, MINIBATCH_SIZE, NUM_EPOCHS, SEED = 450, 16, 7, 3
TOLERANCE = 1e-5
REFERENCE = "elasticdl_module", "in_process"
ELASTIC = pytest.param("elastic", marks=[pytest.mark.ray, pytest.mark.slow])
ENGINES = ["in_process", ELASTIC, "federated"]


@pytest.fixture(scope="module")
def cluster():
    """Return the address of a Ray that all cells of a column share."""
    from elasticdl.engines import elastic  # noqa: F401 - sets Ray's environment

    import ray.cluster_utils  # isort: skip

    with warnings.catch_warnings():
        # Ray leaves files open.
        warnings.simplefilter("ignore")
        cluster = ray.cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
        yield cluster.address
        cluster.shutdown()


@pytest.fixture(scope="module")
def trained(tmp_path_factory, request):
    """Return a function: dialect, engine and whether to shuffle -> losses, steps and weights."""
    folder = tmp_path_factory.mktemp("interchange")
    data = str(write_records(folder / "train.recordio", NUM_RECORDS))

    @functools.cache
    def train(dialect, engine, shuffle):
        place = folder / f"{dialect}-{engine}-{shuffle}"
        place.mkdir()
        job = Job(
            command="train",
            data=data,
            output=str(place / "out"),
            model=written.write(dialect, place, SEED),
            training=TrainingOptions(
                num_epochs=NUM_EPOCHS, minibatch_size=MINIBATCH_SIZE, seed=SEED, shuffle=shuffle
            ),
        )
        if engine == "federated":
            job = replace(job, data="", federation=Federation(num_rounds=NUM_EPOCHS))
            simulate.train(job, Silent(), [Member("alone", data)])
        elif engine == "elastic":
            ray_address = request.getfixturevalue("cluster")
            api.run(replace(job, workers=Workers(1, 1, ray_address=ray_address)), Silent())
        else:
            api.run(job, Silent())
        kind = RoundFinished if engine == "federated" else EpochFinished
        log = read_events(place / "out" / "events.jsonl")
        losses = [event.metrics["loss"] for event in log if isinstance(event, kind)]
        assert len(losses) == NUM_EPOCHS
        return losses, dict(load_trained_model(job.output).params)

    return train


@pytest.fixture
def difference(trained, record_property):
    """Return a function: dialect, engine -> the greatest difference from the reference."""

    def measure(dialect, engine):
        shuffle = dialect != "abstractions"
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
