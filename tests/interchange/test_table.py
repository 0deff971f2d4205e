"""The same model is the same training, whichever way it is written and wherever it is trained.

Each cell of the table is the greatest difference from a reference: a module, trained in one
process. `experiments.py` says what is compared with what. The usual one has 200 steps over epoch
boundaries with Adam, BatchNorm, dropout and shuffled records. Components of a session have an
order of their own, which no seed of ours decides; theirs is that of the file, and so is their
reference's.

All that parties train is asked for by configs, as a person writes them.
"""

import functools
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import yaml
from tests.engines.conftest import write_records
from tests.interchange import written
from tests.interchange.experiments import (
    ELASTIC,
    EXPERIMENTS,
    FEDERATED,
    IN_PROCESS,
    NUM_RECORDS,
    NUM_TEST_RECORDS,
    PARTIES,
    REFERENCES,
)

from elasticdl import api, federated
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.data.sources import open_source
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import UsageError
from elasticdl.event_file import read_events
from elasticdl.events import EpochFinished, Evaluated, RoundFinished
from elasticdl.job import Job, TrainingOptions, Workers

SEED = 3
TOLERANCE = 1e-5
MODULE, COMPONENTS = "elasticdl_module", "abstractions"
ELASTIC_PROGRAM = Path(__file__).with_name("elastic.py")
ASPECTS = ("evaluate", "report", "predict")


def marks_of(name, *, is_implied=False):
    """Return the marks of a cell."""
    exhaustive = [pytest.mark.exhaustive] if is_implied else []
    is_elastic = EXPERIMENTS[name].engine == ELASTIC
    return exhaustive + ([pytest.mark.ray, pytest.mark.slow] if is_elastic else [])


# Each dialect is trained in each engine, the module in each column. What reads its records itself
# is, by one party, what it is in one process, and on two workers and by three parties what the
# module is; one worker and FedSGD are less. The other cells (`make parity`) are those once more.
IN_EACH_COLUMN = {"in process", "2 workers", "3 parties"}
TRAININGS = [
    pytest.param(dialect, name, marks=marks_of(name, is_implied=is_implied))
    for dialect in written.ROWS
    for name in EXPERIMENTS
    for is_implied in [
        name not in IN_EACH_COLUMN
        and dialect != MODULE
        and (dialect, name) != (COMPONENTS, "1 party")
    ]
]
# What reads a trained model sees a folder: one of each engine, one of each dialect, and one of what
# reads its records itself that parties trained.
READINGS = [
    pytest.param(dialect, aspect, name, marks=marks_of(name, is_implied=is_implied))
    for dialect in written.ROWS
    for aspect in ASPECTS
    for name in EXPERIMENTS
    for is_implied in [
        (
            dialect != MODULE
            and name != "in process"
            and (dialect, name) != (COMPONENTS, "3 parties")
        )
        # A report has the metrics of an evaluation, where there can be one.
        or (aspect == "evaluate" and dialect != COMPONENTS and name != "in process")
    ]
]
# Where an epoch has more than one batch, the order of records decides.
ORDERED = ("in process", "an epoch a step")
TRAINED_FROM = {**EXPERIMENTS, **REFERENCES}


@dataclass(frozen=True)
class Result:
    """What a training came to: what was measured after each epoch or round, and where it lies."""

    measured: dict[str, list[float]]
    output: str


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with the records of all parties."""
    folder = tmp_path_factory.mktemp("interchange")
    test = folder / "test.recordio"
    write_records(test, NUM_TEST_RECORDS, seed=9)
    for seed, (name, number) in enumerate({"everybody": NUM_RECORDS, **PARTIES}.items()):
        (folder / "data" / name).mkdir(parents=True)
        write_records(folder / "data" / name / "train.recordio", number, seed=seed)
        shutil.copy(test, folder / "data" / name)
    return folder


def is_shuffled(dialect):
    return dialect != COMPONENTS


@pytest.fixture(scope="module")
def written_for(place):
    """Return a function: dialect and experiment, to what names the model, and its folder."""

    def write(dialect, name, shuffle):
        folder = place / f"{dialect}-{name}-{shuffle}".replace(" ", "_")
        folder.mkdir()
        return written.write(dialect, folder, SEED, TRAINED_FROM[name].kind), folder

    return write


@pytest.fixture(scope="module")
def job_of(place, written_for):
    """Return a function: dialect, experiment and whether to shuffle -> a job in its own folder."""

    def make(dialect, name, shuffle):
        experiment = TRAINED_FROM[name]
        model, folder = written_for(dialect, name, shuffle)
        data = f"{place}/data/everybody"
        num_workers = experiment.num_workers
        records = [f"{place}/data/{party}/train.recordio" for party in experiment.parties]
        if len(records) > 1:
            (folder / "records").mkdir()
            for number, record in enumerate(records):
                shutil.copy(record, folder / "records" / f"{number}.recordio")
            records = [str(folder / "records")]
        return Job(
            command="train",
            data=data if dialect == COMPONENTS else records[0],
            output=str(folder / "out"),
            model=model,
            validation_data=data if dialect == COMPONENTS else f"{data}/test.recordio",
            training=TrainingOptions(
                num_epochs=experiment.num_epochs,
                minibatch_size=experiment.minibatch_size,
                seed=SEED,
                shuffle=shuffle,
                **experiment.options,
            ),
            workers=Workers(num_workers, num_workers) if experiment.engine == ELASTIC else None,
        )

    return make


def _tests_beside(request):
    """Return the tests of this file that are run."""
    return [item for item in request.session.items if item.path == request.path]


@pytest.fixture(scope="module")
def elastic(job_of, tmp_path_factory, request):
    """Start to train what tests want of workers; returns what waits for one, and gives its job."""
    folder = tmp_path_factory.mktemp("elastic")
    wanted = [getattr(test, "callspec", None) for test in _tests_beside(request)]
    cells = dict.fromkeys(
        (call.params.get("dialect", MODULE), call.params["name"])
        for call in wanted
        if call is not None and EXPERIMENTS[call.params["name"]].engine == ELASTIC
    )
    jobs = {(dialect, name): job_of(dialect, name, is_shuffled(dialect)) for dialect, name in cells}
    paths = {cell: folder / f"{'-'.join(cell)}.json".replace(" ", "_") for cell in cells}
    for cell, path in paths.items():
        path.write_text(jobs[cell].to_json())
    processes = []

    def is_done(cell):
        return paths[cell].with_suffix(".done").exists()

    def start():
        left = [paths[cell] for cell in cells if not is_done(cell)]
        with (folder / "log").open("ab") as log:
            command = [sys.executable, "-P", ELASTIC_PROGRAM, *left]
            processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def wait_for(*cell):
        while not is_done(cell):
            code = processes[-1].poll()
            assert code is None or code < 0, (folder / "log").read_text()
            if code is not None:
                # Ray's library has been seen to abort a process that connects a second time
                # (pthread_mutex_lock.c: e != ESRCH || !robust); the jobs go on in another one.
                assert len(processes) == 1, (folder / "log").read_text()
                start()
            time.sleep(0.1)
        return jobs[cell].output

    start()
    yield wait_for
    for process in processes:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module", autouse=True)
def elastic_beside_the_others(request):
    """Begin with what takes longest: most of it is waiting for processes to start."""
    if any(item.get_closest_marker("ray") for item in _tests_beside(request)):
        request.getfixturevalue("elastic")


@pytest.fixture(scope="module")
def federate(place, written_for):
    """Return a function: dialect and experiment -> the output of what parties have trained."""

    def train(dialect, name):
        experiment = EXPERIMENTS[name]
        model, folder = written_for(dialect, name, True)
        section = written.section(dialect, model)
        for number, party in enumerate(experiment.parties):
            records = {
                key: f"{place}/data/{party}/{file}.recordio"
                for key, file in (("uri", "train"), ("validation_uri", "test"))
            }
            own = {"data_dir": f"{place}/data/{party}"} if dialect == COMPONENTS else records
            config = {
                "connection": {"info": {"id": party}},
                "data": own,
                "model": section,
                "privacy": {"metrics": True},
            }
            (folder / f"party{number}.yml").write_text(yaml.safe_dump(config))
        rounds = {
            "rounds": experiment.num_epochs,
            "num_parties": len(experiment.parties),
            "seed": SEED,
        }
        training = {"epochs": experiment.num_local_epochs}
        if dialect != COMPONENTS:
            training["batch_size"] = experiment.minibatch_size
        config = {
            "fusion": {"name": "fedavg"},
            "hyperparams": {"global": rounds, "local": {"training": training}},
            "model": section,
            "output": "out",
        }
        (folder / "aggregator.yml").write_text(yaml.safe_dump(config))
        return federated.simulate(str(folder / "aggregator.yml"), reporter=Silent()).output

    return train


@pytest.fixture(scope="module")
def trained(job_of, federate, request):
    """Return a function: dialect, experiment and whether to shuffle -> what it came to."""

    @functools.cache
    def train(dialect, name, shuffle):
        experiment = TRAINED_FROM[name]
        if experiment.engine == ELASTIC:
            output = request.getfixturevalue("elastic")(dialect, name)
        elif experiment.engine == FEDERATED:
            output = federate(dialect, name)
        else:
            assert experiment.engine == IN_PROCESS
            output = api.run(job_of(dialect, name, shuffle), Silent()).output
        kind = RoundFinished if experiment.engine == FEDERATED else EpochFinished
        log = list(read_events(Path(output) / "events.jsonl"))
        validation = [event.metrics for event in log if isinstance(event, Evaluated)]
        measured = {f"val_{key}": [each[key] for each in validation] for key in validation[0]}
        measured["loss"] = [event.metrics["loss"] for event in log if isinstance(event, kind)]
        assert {len(values) for values in measured.values()} == {experiment.num_epochs}
        return Result(measured, output)

    return train


@pytest.fixture(scope="module")
def reference_of(trained):
    """Return a function: dialect and experiment -> what its training is compared with."""

    def reference(dialect, name):
        compared = EXPERIMENTS[name].reference
        has_order = compared in ORDERED
        shuffle = is_shuffled(dialect) if has_order else True
        return trained(MODULE, name if compared is None else compared, shuffle)

    return reference


@pytest.fixture(scope="module")
def said(place):
    """Return a function: result and aspect -> numbers by name, or why that is refused."""
    data = {
        "records": f"{place}/data/everybody/test.recordio",
        "folder": f"{place}/data/everybody",
    }

    def evaluate(output, where):
        api.evaluate(trained_model=output, data=data[where], reporter=Silent())
        found = json.loads((Path(output) / "evaluation.json").read_text())
        assert found["num_records"] == NUM_TEST_RECORDS
        return found["metrics"]

    def report(output, where):
        folder = f"{output}/report"
        outcome = api.evaluate(
            trained_model=output, data=data[where], report=folder, reporter=Silent()
        )
        columns = pyarrow.parquet.read_table(f"{folder}/report.parquet").to_pydict()
        # What a function says of a whole batch is not known of an example.
        columns.pop("metric.accuracy", None)
        assert {len(column) for column in columns.values()} == {NUM_TEST_RECORDS}
        return {**columns, **outcome.metrics}

    def predict(output, where):
        file = f"{output}/predicted.recordio"
        api.predict(trained_model=output, data=data[where], output=file, reporter=Silent())
        source = open_source(file)
        assert source.num_records == NUM_TEST_RECORDS
        rows = source.read_records(0, source.num_records, None)
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}

    functions = {"evaluate": evaluate, "report": report, "predict": predict}

    @functools.cache
    def say(dialect, aspect, output):
        where = "folder" if dialect == COMPONENTS else "records"
        try:
            return functions[aspect](output, where)
        except UsageError as error:
            return str(error).replace(output, "MODEL").partition(" (")[0]

    return say


def difference(found, expected):
    """Return the greatest difference of numbers that have equal names; texts must be equal."""
    assert found.keys() == expected.keys()
    greatest = 0.0
    for name, values in found.items():
        ours, theirs = np.asarray(values), np.asarray(expected[name])
        assert ours.shape == theirs.shape, name
        if np.issubdtype(ours.dtype, np.floating):
            greatest = max(greatest, float(np.max(np.abs(ours - theirs))))
        else:
            np.testing.assert_array_equal(ours, theirs, err_msg=name)
    return greatest


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("dialect", "name"), TRAININGS)
def test_a_model_trains_identically_in_each_dialect_and_engine(
    dialect, name, trained, reference_of, record_property
):
    reference = reference_of(dialect, name)
    found = difference(trained(dialect, name, is_shuffled(dialect)).measured, reference.measured)

    record_property("interchange", ("training", dialect, name, found))
    assert reference.measured["loss"][-1] < reference.measured["loss"][0] / 1.5
    assert found <= TOLERANCE


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("dialect", "aspect", "name"), READINGS)
def test_a_trained_model_gives_the_same_results_or_refuses_by_name(
    dialect, aspect, name, trained, reference_of, said, record_property
):
    ours = said(dialect, aspect, trained(dialect, name, is_shuffled(dialect)).output)
    expected = said(MODULE, aspect, reference_of(dialect, name).output)

    if dialect == COMPONENTS and aspect != "evaluate":
        command = {"report": "evaluate --report", "predict": "predict"}[aspect]
        record_property("interchange", (aspect, dialect, name, str(ours)))
        assert isinstance(ours, str)
        assert f"elasticdl {command} reads records" in ours
        return
    found = difference(ours, expected)
    record_property("interchange", (aspect, dialect, name, found))
    assert found <= 10 * TOLERANCE


def test_a_module_with_the_later_names_trains_identically(trained, record_property):
    found = difference(
        trained(written.LATER_NAMES, "in process", True).measured,
        trained(MODULE, "in process", True).measured,
    )

    record_property("interchange", ("training", written.LATER_NAMES, "in process", found))
    assert found <= TOLERANCE


def test_the_comparison_takes_at_least_two_hundred_steps():
    usual = EXPERIMENTS["in process"]

    assert -(-NUM_RECORDS // usual.minibatch_size) * usual.num_epochs >= 200


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=marks_of(name)) for name in list(EXPERIMENTS)[1:]]
)
def test_a_model_has_the_same_weights_from_each_engine(name, trained, reference_of):
    expected = dict(load_trained_model(reference_of(MODULE, name).output).params)
    found = dict(load_trained_model(trained(MODULE, name, True).output).params)

    assert difference(found, expected) <= TOLERANCE


def test_the_tolerance_detects_another_order_of_records(trained):
    ours = trained(MODULE, "in process", True).measured
    other = trained(MODULE, "in process", False).measured

    assert difference(ours, other) > 100 * TOLERANCE
