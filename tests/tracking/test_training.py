"""A real training, killed and started again, is one run with every epoch once."""

import itertools
import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.notes import Notes

import elasticdl
from elasticdl.artifacts.checkpoint_store import CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.cli.main import main
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import MissingExtraError, NonFiniteLossError, OutputTakenError, TrackingError

EXPERIMENTS = (f"small {number}" for number in itertools.count())


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A database for all: making one takes MLflow seconds."""
    return tmp_path_factory.mktemp("runs") / "mlflow.db"


@pytest.fixture
def tracked(job, database):
    """The job, tracked everywhere, in an experiment of its own."""
    where = {"tracking_uri": str(database), "experiment": next(EXPERIMENTS)}
    return {**job, **where, "tensorboard": True}


@pytest.fixture
def runs(tracked, database, runs_in):
    return lambda: runs_in(database, tracked["experiment"])


@pytest.fixture
def train():
    def train(options, reporter=None):
        return elasticdl.train(**options, reporter=reporter or Silent())

    return train


def begin(options):
    """Start a training of its own process, slow enough to be met in the middle of an epoch."""
    flags = [f"--{name}={value}" for name, value in options.items() if value is not True]
    flags += [f"--{name}" for name, value in options.items() if value is True]
    context = multiprocessing.get_context("forkserver")
    # Importing it takes longer than what is looked at.
    context.set_forkserver_preload(["elasticdl.training.keras"])
    process = context.Process(target=train_slowly, args=(["train", *flags],))
    process.start()
    return process


def train_slowly(arguments):
    os.environ["SLEEP_S"] = "0.05"
    main(arguments)


def wait_until(process, output, condition):
    """Wait for something in the log of a training."""
    log = Path(output, "events.jsonl")
    until = time.monotonic() + 60
    while True:
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        if condition([json.loads(line) for line in lines if line.endswith("\n")]):
            return
        assert process.exitcode is None
        assert time.monotonic() < until
        time.sleep(0.005)


def num(events, name):
    return sum(event["event"] == name for event in events)


def end(process, number):
    os.kill(process.pid, number)
    process.join(60)
    return process.exitcode


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_resumed_job_is_one_run_with_each_epoch_once(tracked, train, runs, curves_in):
    output = Path(tracked["output"])

    process = begin(tracked)
    wait_until(process, output, lambda events: num(events, "epoch_finished") >= 1)
    assert end(process, signal.SIGTERM) == 143
    (run,) = runs()
    assert run.info.status == "KILLED"

    before = num([json.loads(line) for line in open_log(output)], "epoch_finished")
    process = begin(tracked)
    wait_until(process, output, lambda events: num(events, "epoch_finished") >= before + 2)
    time.sleep(0.2)  # some steps into the next epoch
    assert end(process, signal.SIGKILL) == -signal.SIGKILL
    (run,) = runs()
    assert run.info.status == "RUNNING", "Nobody could say that it ended"

    outcome = train(tracked)

    (run,) = runs()
    assert run.info.status == "FINISHED"
    assert run.data.tags["attempt"] == "3"
    steps = [10, 20, 30, 40, 50, 60]
    assert run.history["epoch"] == [(step, step / 10) for step in steps]
    for name in ("loss", "val_loss", "val_accuracy_1"):
        assert [step for step, _ in run.history[name]] == steps, name
    assert run.data.metrics["val_loss"] == outcome.metrics["val_loss"]
    curves = curves_in(output)
    for part in ("train", "validation"):
        assert [step for step, _ in curves[f"{part}/epoch_loss"]] == [0, 1, 2, 3, 4, 5]
    assert [round(value, 5) for _, value in curves["train/epoch_loss"]] == [
        round(value, 5) for _, value in run.history["loss"]
    ]


def open_log(output):
    return (output / "events.jsonl").read_text().splitlines()


def test_a_failed_training_is_a_failed_run_with_the_reason(tracked, train, runs, monkeypatch):
    train({**tracked, "num_epochs": 1})
    monkeypatch.setenv("SCALE", "nan")
    with pytest.raises(NonFiniteLossError):
        train({**tracked, "num_epochs": 2})

    (run,) = runs()
    assert run.info.status == "FAILED"
    assert run.data.tags["error"].startswith("NonFiniteLossError: ")
    assert run.data.tags["attempt.2.num_epochs"] == "2"

    monkeypatch.setenv("SCALE", "1")
    train({**tracked, "num_epochs": 2})
    (run,) = runs()
    assert run.info.status == "FINISHED"
    assert run.history["epoch"] == [(10, 1.0), (20, 2.0)]


def test_a_run_has_the_request_and_the_user(tracked, train, runs, database):
    reporter = Notes()
    train({**tracked, "num_epochs": 1, "params": "units=4", "run_name": "first"}, reporter)

    where = f"sqlite:///{database}: experiment {tracked['experiment']!r}"
    assert any(where in note for note in reporter.texts)
    (run,) = runs()
    assert run.info.run_name == "first"
    params = run.data.params
    assert (params["model_def"], params["params.units"], params["num_epochs"]) == (
        "small",
        "4",
        "1",
    )
    assert params["data"] == tracked["data"]
    tags = run.data.tags
    assert (tags["framework"], tags["dialect"]) == ("keras", "elasticdl_module")
    assert tags["output"] == tracked["output"]
    assert tags["job_id"].startswith("train-")
    assert "version.keras" in tags


def test_tracking_may_begin_in_the_middle_of_a_job_and_at_its_end(
    job, tracked, train, runs, runs_in, curves_in, database
):
    untracked = {**job, "num_epochs": 2}
    train(untracked)
    train({**tracked, "num_epochs": 4})
    (run,) = runs()
    assert [step for step, _ in run.history["val_loss"]] == [10, 20, 30, 40]

    again = train({**tracked, "num_epochs": 4, "experiment": "later"})

    assert again.already_done
    (run,) = runs_in(database, "later")
    assert [step for step, _ in run.history["loss"]] == [10, 20, 30, 40]
    assert run.info.status == "FINISHED"
    assert len(curves_in(Path(job["output"]))["train/epoch_loss"]) == 4


def test_a_finished_job_is_not_tracked_again(tracked, train, runs):
    train({**tracked, "num_epochs": 1})
    train({**tracked, "num_epochs": 1})

    (run,) = runs()
    assert run.data.tags["attempt"] == "1"


def test_tracking_does_not_change_the_result(job, tracked, train, tmp_path):
    train({**job, "num_epochs": 2, "output": str(tmp_path / "untracked")})
    train({**tracked, "num_epochs": 2})

    one, other = (
        CheckpointStore(OutputFolder(output)).latest().checkpoint.state
        for output in (tmp_path / "untracked", tracked["output"])
    )
    for path in one:
        np.testing.assert_array_equal(one[path], other[path], err_msg=path)


def test_an_unreachable_server_is_an_error_before_training(tracked, train):
    with pytest.raises(TrackingError, match="127.0.0.1:9"):
        train({**tracked, "tracking_uri": "http://127.0.0.1:9"})

    assert not any("step_committed" in line for line in open_log(Path(tracked["output"])))


def test_an_output_without_any_training_accepts_another_job(tracked, train, runs, monkeypatch):
    monkeypatch.setenv("SCALE", "nan")
    with pytest.raises(NonFiniteLossError):
        train({**tracked, "params": "units=4"})
    monkeypatch.setenv("SCALE", "1")
    outcome = train({**tracked, "num_epochs": 1})

    assert outcome.step == 10
    found = runs()
    assert {run.info.status for run in found} == {"FAILED", "FINISHED"}
    assert [step for run in found for step, _ in run.history.get("epoch", ())] == [10]


def test_an_unrelated_folder_is_still_refused(tracked, train):
    Path(tracked["output"]).mkdir()
    Path(tracked["output"], "thesis.tex").write_text("")

    with pytest.raises(OutputTakenError):
        train(tracked)


def test_a_missing_package_is_reported_with_its_install_command(tracked, train, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'elasticdl\[tracking\]'"):
        train(tracked)
