"""The documents' session, trained, exported, evaluated and reported by the command they ask for."""

import contextlib
import csv
import functools
import importlib
import io
import json
import multiprocessing
import random
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest

from elasticdl.artifacts.checkpoint_store import CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.cli.main import main
from elasticdl.event_file import read_events
from elasticdl.events import EpochFinished

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def project(documents, tmp_path_factory):
    """Return a function that writes the documents' project, with a session of one flavour."""

    def write(flavour, num_epochs):
        root = tmp_path_factory.mktemp("project")
        (root / "src").mkdir()
        for module, code in documents.component_files().items():
            (root / "src" / f"{module}.py").write_text(code)
        run = root / "runs" / "baseline"
        run.mkdir(parents=True)
        config = documents.config(flavour)
        assert "epochs: 10" in config
        (run / "config.yaml").write_text(config.replace("epochs: 10", f"epochs: {num_epochs}"))
        return root

    return write


@pytest.fixture(scope="module")
def left_alone(project, digit_pictures):
    """Return a function that gives a project whose session nobody disturbed, and its seconds."""

    @functools.cache
    def train(flavour, num_epochs, run):
        # What all processes have imported is none of a session's time.
        preloaded = forked().Process(target=print)
        preloaded.start()
        preloaded.join()
        root = project(flavour, num_epochs)
        started_s = time.monotonic()
        process = start(root, digit_pictures, run)
        process.join()
        assert process.exitcode == 0
        return root, time.monotonic() - started_s

    return train


def forked():
    """Return what starts processes that find what they compute with imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["elasticdl.sessions.export", "elasticdl.sessions.report", "elasticdl.sessions.trained"]
    )
    return context


def run_in_one_process(arguments):
    """Run a command that tries what it exports in its own process: another imports TensorFlow."""
    from elasticdl.sessions import export
    from elasticdl.training.keras import verify_export

    def tried(command, **options):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            verify_export.main(command[command.index("-m") + 2 :])
        return SimpleNamespace(stdout=said.getvalue())

    export.subprocess = SimpleNamespace(run=tried, SubprocessError=OSError)
    main(arguments)


def start(project, data, run):
    """Start `session run` in a process of its own."""
    arguments = ["--run_name=baseline", f"--project_root={project}", f"--data_dir={data}"]
    more = ["--checkpoint_steps=20", "--quiet"]
    process = forked().Process(target=run, args=(["session", "run", *arguments, *more],))
    process.start()
    return process


def epochs(run):
    events = read_events(run / "training" / "events.jsonl")
    return [event.epoch for event in events if isinstance(event, EpochFinished)]


@pytest.mark.parametrize(("flavour", "run"), [("TF", run_in_one_process), ("", main)])
def test_a_session_is_trained_exported_and_reported(left_alone, flavour, run):
    root, _ = left_alone(flavour, 2, run)

    folder = root / "runs" / "baseline"
    state = json.loads((folder / "session.json").read_text())
    assert state["state"] == "evaluated"
    assert epochs(folder) == [0, 1]
    exported = json.loads((folder / "exported" / "export.json").read_text())
    assert set(exported["largest_difference"]) == {"savedmodel", "model.keras"}
    assert exported["metrics"]["val_sparse_categorical_accuracy"] > 0.9
    for split, table, size in (
        ("validation", "validation_report", 397),
        ("test", "eval_report", 400),
    ):
        with (folder / "reports" / f"{table}.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert sorted(row[""] for row in rows) == sorted(f"image_{i}.jpg" for i in range(size))
        assert (folder / "reports" / f"{split}.html").stat().st_size > 1000
        if split == "validation":
            mean = np.mean([float(row["sparse categorical ce"]) for row in rows])
            assert mean == pytest.approx(exported["metrics"]["val_loss"], rel=1e-4)


def tracked_epochs(project):
    """Return which epochs MLflow has of the project's only run."""
    client = importlib.import_module("mlflow.tracking").MlflowClient(
        f"sqlite:///{project / 'runs' / 'mlflow.db'}"
    )
    experiments = [e.experiment_id for e in client.search_experiments()]
    (found,) = client.search_runs(experiments)
    assert found.info.status == "FINISHED"
    return [m.value for m in client.get_metric_history(found.info.run_id, "epoch")]


def state(run):
    store = CheckpointStore(OutputFolder(run / "training"))
    return store.latest().checkpoint.state


def kill_again_and_again(project, left_alone, data, flavour, run, num_kills, num_epochs):
    """Kill a session in its training, its export and its reports; compare with one left alone."""
    alone, whole_s = left_alone(flavour, num_epochs, run)
    killed = project(flavour, num_epochs)
    rng = random.Random(num_kills)
    num_killed = 0
    for number in range(num_kills):
        process = start(killed, data, run)
        # Each in a part of its own: a run that goes on has less to do.
        process.join(rng.uniform(0.3, 1) * whole_s * (number + 1) / num_kills)
        process.kill()
        process.join()
        num_killed += process.exitcode == -signal.SIGKILL
    process = start(killed, data, run)
    process.join()
    assert process.exitcode == 0
    assert num_killed >= num_kills // 2, f"It was over after {num_killed} kills."

    one, other = alone / "runs" / "baseline", killed / "runs" / "baseline"
    expected, found = state(one), state(other)
    assert [path for path in expected if expected[path].tobytes() != found[path].tobytes()] == []
    assert epochs(other) == epochs(one) == list(range(num_epochs))
    assert tracked_epochs(killed) == [epoch + 1 for epoch in range(num_epochs)]
    for file in ("reports/eval_report.csv", "reports/validation_report.csv"):
        assert (other / file).read_bytes() == (one / file).read_bytes()
    assert {p.name for p in one.iterdir()} == {p.name for p in other.iterdir()}


def test_three_kills_at_any_moment_leave_no_trace(project, left_alone, digit_pictures):
    kill_again_and_again(
        project, left_alone, digit_pictures, "TF", run_in_one_process, num_kills=3, num_epochs=2
    )


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("flavour", ["TF", ""])
def test_twenty_kills_at_any_moment_leave_no_trace(project, left_alone, digit_pictures, flavour):
    kill_again_and_again(
        project, left_alone, digit_pictures, flavour, main, num_kills=20, num_epochs=6
    )
