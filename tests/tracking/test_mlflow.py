"""A job is one MLflow run; real MLflow on a database of its own."""

import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlparse

import pytest

from elasticdl.artifacts.folder import OutputFolder
from elasticdl.errors import TrackingError
from elasticdl.job import Tracking
from elasticdl.tracking.mlflow import MlflowTracker
from elasticdl.tracking.stored_run import load_stored_run
from elasticdl.tracking.tracker import Kind, MetricPoint, RunStatus, TrackedAttempt

EXPERIMENTS = (f"experiment {number}" for number in itertools.count())


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    return tmp_path_factory.mktemp("runs") / "mlflow.db"


@pytest.fixture
def output(tmp_path):
    return OutputFolder(tmp_path / "out")


@pytest.fixture
def notes():
    return []


@pytest.fixture
def tracking(database):
    return Tracking(str(database), next(EXPERIMENTS))


@pytest.fixture
def start(tracking, output, notes):
    """Start a new attempt; what is given is of the attempt."""
    numbers = itertools.count(1)

    def start(tracking=tracking, **values):
        tracker = MlflowTracker(tracking, output, notes.append)
        tracker.start(TrackedAttempt(next(numbers), "train-1", "a run", **values))
        return tracker

    return start


@pytest.fixture
def run(runs_in, database, tracking):
    def only_run():
        (found,) = runs_in(database, tracking.experiment)
        return found

    return only_run


def epoch(number, **values):
    return MetricPoint(Kind.EPOCH, 10 * number + 10, number, 1000.0 + number, training=values)


def test_a_point_is_logged_at_its_step_and_time(start, run, tracking):
    from mlflow.tracking import MlflowClient

    tracker = start()
    tracker.point(epoch(1, loss=0.5))

    client = MlflowClient(f"sqlite:///{tracking.uri}")
    (metric,) = client.get_metric_history(run().info.run_id, "loss")
    assert (metric.value, metric.step, metric.timestamp) == (0.5, 20, 1_001_000)
    assert run().history["epoch"] == [(20, 2.0)]


def test_validation_metrics_come_only_from_evaluations(start, run):
    tracker = start()
    tracker.point(MetricPoint(Kind.EVALUATION, 5, 0, 5.0, validation={"loss": 0.7}))
    tracker.point(MetricPoint(Kind.EPOCH, 10, 0, 6.0, {"loss": 0.5}, {"loss": 0.7}))

    assert run().history["val_loss"] == [(5, 0.7)]


def test_an_epoch_repeated_with_other_steps_is_logged_once(start, run):
    tracker = start()
    tracker.point(MetricPoint(Kind.EPOCH, 10, 0, 6.0, {"loss": 0.5}))
    tracker = start()
    tracker.point(MetricPoint(Kind.EPOCH, 12, 0, 8.0, {"loss": 0.4}))

    assert run().history["loss"] == [(10, 0.5)]


def test_many_metrics_are_logged_in_batches(start, run):
    start().point(epoch(0, **{f"m{number}": float(number) for number in range(1500)}))

    assert run().data.metrics["m1499"] == 1499.0


def test_the_original_name_of_a_metric_is_a_tag(start, run):
    start().point(epoch(0, **{"dice@0.5": 1.0}))

    assert run().data.metrics["dice_0.5"] == 1.0
    assert run().data.tags["elasticdl.metric.dice_0.5"] == "dice@0.5"


def test_parameters_are_kept_and_changes_are_tags(start, run):
    start(params={"num_epochs": 6, "seed": 1})
    start(params={"num_epochs": 8, "seed": 1, "new one@": True})

    assert run().data.params == {"num_epochs": "6", "seed": "1", "new one_": "True"}
    assert run().data.tags["attempt.2.num_epochs"] == "8"
    assert run().data.tags["attempt"] == "2"


def test_many_and_long_parameters_are_logged(start, run):
    long = "x" * 7000
    start(params={"long": long, **{f"p{number}": number for number in range(150)}})
    start(params={"long": long})

    assert len(run().data.params) == 151
    assert run().data.params["long"] == "x" * 5997 + "..."
    assert "attempt.2.long" not in run().data.tags
    text = (folder_of(run()) / "long_params.json").read_text()
    assert json.loads(text) == {"long": long}


def folder_of(run):
    uri = urlparse(run.info.artifact_uri)
    assert uri.scheme == "file"
    return Path(uri.path)


def test_files_are_stored_beside_the_database(start, run, tmp_path, database):
    report = tmp_path / "report.csv"
    report.write_text("id\n")
    tracker = start()
    tracker.artifact(report, "reports")
    tracker.artifact(tmp_path / "out", "outputs")

    kept = folder_of(run())
    assert (kept / "reports" / "report.csv").read_text() == "id\n"
    assert (kept / "outputs" / "tracking.json").exists()
    assert kept.is_relative_to(database.parent)
    with pytest.raises(ValueError, match="there is no such file"):
        tracker.artifact(tmp_path / "nothing")


def test_the_failure_reason_is_a_tag_until_the_next_attempt(start, run):
    start().end(RunStatus.FAILED, "DataError: gone")
    assert run().data.tags["error"] == "DataError: gone"
    assert run().info.status == "FAILED"

    start()
    assert "error" not in run().data.tags
    assert run().info.status == "RUNNING"


def test_the_final_state_is_kept_in_the_output(start, output):
    tracker = start()
    assert load_stored_run(output).status == ""

    tracker.end(RunStatus.FINISHED)
    assert load_stored_run(output).status == "FINISHED"


def test_a_deleted_run_is_recreated_with_a_note(start, run, tracking, notes):
    from mlflow.tracking import MlflowClient

    start().point(epoch(0, loss=1.0))
    deleted = run().info.run_id
    MlflowClient(f"sqlite:///{tracking.uri}").delete_run(deleted)
    start().point(epoch(0, loss=1.0))

    assert run().info.run_id != deleted
    assert run().history["loss"] == [(10, 1.0)]
    assert any(f"Run {deleted} was deleted" in note for note in notes)


def test_a_run_deleted_during_training_rejects_data(start, run, tracking):
    from mlflow.tracking import MlflowClient

    tracker = start()
    MlflowClient(f"sqlite:///{tracking.uri}").delete_run(run().info.run_id)

    with pytest.raises(ValueError, match="rejected the data"):
        tracker.point(epoch(0, loss=1.0))


def test_another_experiment_starts_another_run_with_a_note(
    start, runs_in, database, tracking, notes
):
    start()
    elsewhere = Tracking(tracking.uri, next(EXPERIMENTS))
    start(elsewhere)

    assert len(runs_in(database, elsewhere.experiment)) == 1
    assert any("here it has a new run" in note for note in notes)


def test_an_experiment_has_the_pages_of_model_training(start, tracking):
    from mlflow.tracking import MlflowClient

    start()
    client = MlflowClient(f"sqlite:///{tracking.uri}")
    experiment = client.get_experiment_by_name(tracking.experiment)

    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"


def test_a_deleted_experiment_is_an_error(start, tracking):
    from mlflow.tracking import MlflowClient

    start()
    client = MlflowClient(f"sqlite:///{tracking.uri}")
    client.delete_experiment(client.get_experiment_by_name(tracking.experiment).experiment_id)

    with pytest.raises(TrackingError, match="was deleted. Restore it"):
        start()


def test_a_damaged_tracking_file_only_starts_a_new_run(start, output, runs_in, database):
    start()
    output.write_bytes("tracking.json", b"{torn")
    tracker = start()

    assert load_stored_run(output).run_id == tracker._run_id


def test_an_unreachable_server_is_reported_soon(start):
    started = time.monotonic()
    with pytest.raises(TrackingError, match=r"127.0.0.1:9 cannot be used"):
        start(Tracking("http://me:secret@127.0.0.1:9", "x"))

    assert time.monotonic() - started < 20


@pytest.mark.parametrize("uri", ["nonsense://host", "postgresql://host:abc/db", "/proc/none/db"])
def test_a_wrong_address_is_an_error(start, uri):
    with pytest.raises(TrackingError, match="Check --tracking_uri"):
        start(Tracking(uri, "x"))


def test_no_password_is_shown(start):
    with pytest.raises(TrackingError) as raised:
        start(Tracking("http://me:secret@127.0.0.1:9", "x"))

    assert "secret" not in str(raised.value)


def test_an_unfinished_database_is_completed_by_the_next_process(tmp_path, output, notes):
    database = tmp_path / "runs" / "mlflow.db"
    making = (
        "from elasticdl.tracking.mlflow import _make_database\n"
        f"from pathlib import Path\n_make_database(Path({str(database)!r}))"
    )
    with subprocess.Popen([sys.executable, "-c", making]) as maker:
        while maker.poll() is None and not list(tmp_path.glob("runs/.mlflow-*/mlflow.db")):
            time.sleep(0.005)
        maker.kill()
    assert maker.returncode == -signal.SIGKILL
    assert not database.exists()

    tracker = MlflowTracker(Tracking(str(database)), output, notes.append)
    tracker.start(TrackedAttempt(1, "train-1", "a run"))

    assert database.exists()


def test_a_run_of_a_process_that_died_while_creating_it_is_reused(start, run, output, monkeypatch):
    from mlflow.tracking import MlflowClient

    create_run = MlflowClient.create_run

    def create_and_die(*arguments, **options):
        create_run(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(MlflowClient, "create_run", create_and_die)
        with pytest.raises(KeyboardInterrupt):
            start()
    start()

    assert run().info.run_id == load_stored_run(output).run_id
