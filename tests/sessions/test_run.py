"""A session trains, exports and reports once each, and goes on wherever it was left."""

import importlib.util
import json
import subprocess

import pytest
from click.testing import CliRunner
from tests.sessions.conftest import Notes, weight_of

from elasticdl.artifacts.checkpoint_store import CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.cli.session import session
from elasticdl.engines import run as training_run
from elasticdl.errors import (
    DataError,
    DefinitionError,
    OutputTakenError,
    TrainingError,
    UsageError,
)
from elasticdl.event_file import read_events
from elasticdl.events import EpochFinished, JobFinished, JobStarted
from elasticdl.sessions import export, report
from elasticdl.sessions import run as sessions_run
from elasticdl.sessions.project import open_session
from elasticdl.sessions.run import status_of
from elasticdl.sessions.state import SessionState, read_status

pytestmark = pytest.mark.usefixtures("in_this_process")


@pytest.fixture
def run(project):
    """Return what runs the session of a project, by default untracked; gives status and folder."""

    def run(more="", *, lines=None, **options):
        session = open_session("first", project_root=project(more, **(lines or {})))
        options = {"tracked": False, "reporter": Notes(), **options}
        return sessions_run.run(session, **options), session.folder

    return run


def fails_once(monkeypatch, module, name, error):
    """Let a function raise, the next time it is called only."""
    real = getattr(module, name)

    def raising(*arguments, **options):
        monkeypatch.setattr(module, name, real)
        raise error

    monkeypatch.setattr(module, name, raising)


def events(folder, kind):
    return [e for e in read_events(folder / "training" / "events.jsonl") if isinstance(e, kind)]


def manifest(folder):
    return json.loads((folder / "exported" / "export.json").read_text())


def times(folder):
    parts = [folder / "exported", folder / "reports"]
    files = [file for part in parts for file in part.rglob("*") if file.is_file()]
    assert files
    return {file.name: file.stat().st_mtime_ns for file in files}


# --- the order of things --------------------------------------------------------------------


def test_an_evaluated_session_is_left_unchanged(run):
    first, folder = run()
    before = times(folder)
    second, _ = run()

    assert (first.state, second.state) == (SessionState.EVALUATED, SessionState.EVALUATED)
    assert (first.step, second.step, second.attempt) == (6, 6, 2)
    assert first.metrics == second.metrics
    assert first.metrics["val_loss"] == -6
    assert first.metrics["validation_label"] == first.metrics["test_label"] == 4.5
    assert times(folder) == before
    assert len(events(folder, JobStarted)) == 1


def test_another_config_is_refused_and_leaves_the_session_unchanged(run):
    status, folder = run()

    with pytest.raises(
        OutputTakenError, match=r"config.yaml: .*(?s:.*)  export.mode: 'min' in the folder"
    ):
        run(lines={"mode": "max"})

    assert read_status(folder) == status


def test_a_session_that_improves_with_more_epochs_is_exported_again(run):
    _, folder = run()
    before = manifest(folder)
    status, _ = run(num_epochs=3)

    assert (before["step"], manifest(folder)["step"], status.step) == (6, 9, 9)
    assert weight_of(folder / "training") == -9
    assert [e.epoch for e in events(folder, EpochFinished)] == [0, 1, 2]


def test_a_session_that_does_not_improve_is_not_exported_again(run):
    _, folder = run(lines={"mode": "max"})
    before = times(folder)
    status, _ = run(lines={"mode": "max"}, num_epochs=3)

    assert status.state is SessionState.EVALUATED
    assert [e.epoch for e in events(folder, EpochFinished)] == [0, 1, 2]
    assert times(folder) == before
    assert manifest(folder)["step"] == 3


def test_session_outputs_are_not_part_of_the_projects_code(run):
    classes = {"data_loader_class": "Loader", "preprocessor_class": "Preprocessor"}
    classes |= {"model_builder_class": "Builder", "evaluator_class": "Evaluator"}
    lines = {"src_code_path": ".", **{key: f"src.parts.{name}" for key, name in classes.items()}}
    notes = Notes()
    run(lines=lines, num_epochs=1)
    _, folder = run(lines=lines, reporter=notes)

    code = folder / "training" / "zoo"
    assert (code / "src" / "parts.py").is_file()
    assert not (code / "runs").exists()
    assert [note for note in notes.texts if "changed" in note] == []


def test_a_failure_is_in_the_status_and_the_same_command_resumes(run, monkeypatch, tmp_path):
    folder = tmp_path / "project" / "runs" / "first"
    fails_once(monkeypatch, export, "export", TrainingError("It says something else."))
    with pytest.raises(TrainingError):
        run()
    assert (status_of(folder).state, status_of(folder).error) == (
        SessionState.FAILED,
        "It says something else.",
    )
    assert not (folder / "exported").exists()

    fails_once(monkeypatch, report, "report", DataError("There are fewer."))
    with pytest.raises(DataError):
        run()
    assert (status_of(folder).state, status_of(folder).error) == (
        SessionState.FAILED,
        "There are fewer.",
    )
    assert manifest(folder)["step"] == 6

    status, _ = run()
    assert (status.state, status.error, status.attempt) == (SessionState.EVALUATED, "", 3)
    assert len(events(folder, JobStarted)) == 1


def test_a_run_killed_after_its_export_only_has_to_report(run, monkeypatch, tmp_path):
    folder = tmp_path / "project" / "runs" / "first"
    fails_once(monkeypatch, report, "report", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt) as interrupted:
        run()
    assert interrupted.value.__notes__ == [
        "The model is trained; run the same command to evaluate it."
    ]
    assert status_of(folder).state is SessionState.KILLED
    exported = (folder / "exported" / "export.json").stat().st_mtime_ns

    status, _ = run()

    assert status.state is SessionState.EVALUATED
    assert (folder / "exported" / "export.json").stat().st_mtime_ns == exported
    assert len(events(folder, JobStarted)) == 1


def test_a_continued_training_is_not_done_before_its_model_exists(run, monkeypatch, tmp_path):
    folder = tmp_path / "project" / "runs" / "first"
    run()
    # Between the last checkpoint and the trained model.
    fails_once(monkeypatch, training_run, "publish", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt) as interrupted:
        run(num_epochs=3)
    assert interrupted.value.__notes__ == [
        "Progress is saved up to step 9; run the same command to resume."
    ]

    status, _ = run(num_epochs=3)

    assert (status.step, weight_of(folder / "training")) == (9, -9)
    assert [e.step for e in events(folder, JobFinished)] == [6, 9]


def test_a_resumed_run_deletes_old_checkpoints(run, monkeypatch, tmp_path):
    store = CheckpointStore(
        OutputFolder(tmp_path / "project" / "runs" / "first" / "training"), keep_max=9
    )
    fails_once(monkeypatch, CheckpointStore, "keep_newest", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint_steps=2)
    assert len(store.steps()) > 1

    run(checkpoint_steps=2)

    assert store.steps() == [6]


# --- which model is the best ----------------------------------------------------------------


@pytest.mark.parametrize(("mode", "step"), [("min", 6), ("max", 3)])
def test_the_best_of_negative_metric_values_is_exported(run, mode, step):
    status, folder = run(lines={"mode": mode})

    assert (status.step, manifest(folder)["step"]) == (step, step)
    assert status.metrics["val_loss"] == -step == weight_of(folder / "training")
    assert CheckpointStore(OutputFolder(folder / "training")).steps() == sorted({step, 6})


def test_nan_is_never_the_best(run):
    # After the first epoch it is NaN; after the second one 6, after the third one 9.
    lines = {"model_metric": "late", "metric": "val_late", "epochs": 3}
    status, _ = run(lines=lines)

    assert (status.step, status.metrics["val_late"]) == (6, 6.0)


def test_the_last_model_is_exported_if_all_values_are_nan(run):
    notes = Notes()
    status, folder = run(lines={"model_metric": "never", "metric": "val_never"}, reporter=notes)

    assert (status.state, status.step) == (SessionState.EVALUATED, 6)
    assert (
        "There is no best checkpoint by val_never: it was not measured, or its value was never a "
        "number. The last model is published." in notes.texts
    )
    # As JSON, which knows no NaN.
    told, listed = (
        json.loads(printed(command, folder), parse_constant=pytest.fail)
        for command in (["status", "--run_name=first"], ["list"])
    )
    assert told["metrics"]["val_never"] is None
    assert listed == {"first": told}


def printed(command, folder):
    project = f"--project_root={folder.parents[1]}"
    return CliRunner().invoke(session, [*command, project, "--json"]).output


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("val_valu", "did you mean 'val_value'? The metrics are loss, value, val_loss, val_value."),
        ("accuracy", "accuracy: no such metric. The metrics are loss, value, val_loss"),
    ],
)
def test_an_unmeasured_metric_is_detected_before_the_first_epoch(run, tmp_path, metric, said):
    with pytest.raises(UsageError) as caught:
        run(lines={"model_metric": "value", "metric": metric})

    assert said in str(caught.value)
    folder = tmp_path / "project" / "runs" / "first"
    assert (status_of(folder).state, status_of(folder).error) == (
        SessionState.FAILED,
        str(caught.value),
    )
    assert not (folder / "training" / "checkpoints").exists()


# --- where it is followed -------------------------------------------------------------------


def test_an_mlflow_run_ends_and_resumes_with_its_session(run, monkeypatch, tmp_path):
    from mlflow.tracking import MlflowClient

    database = tmp_path / "project" / "runs" / "mlflow.db"

    def tracked():
        client = MlflowClient(f"sqlite:///{database}")
        experiment = client.get_experiment_by_name("project")
        (found,) = client.search_runs([experiment.experiment_id])
        losses = client.get_metric_history(found.info.run_id, "val_loss")
        return found, [(point.step, point.value) for point in losses]

    fails_once(monkeypatch, export, "export", TrainingError("It says something else."))
    with pytest.raises(TrainingError):
        run(tracked=True)
    assert tracked()[0].info.status == "FAILED"

    fails_once(monkeypatch, report, "report", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(tracked=True)
    assert tracked()[0].info.status == "KILLED"

    run(tracked=True)
    run(tracked=True)
    found, losses = tracked()
    assert found.info.status == "FINISHED"
    assert losses == [(3, -3.0), (6, -6.0)]
    assert found.data.metrics["validation_label"] == 4.5
    assert (found.info.run_name, found.data.tags["session_type"]) == ("first", "training")


def test_a_run_leaves_no_uncommitted_files_in_the_repository(run, project, tmp_path):
    root = project()
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm All"):
        subprocess.run(["git", *command.split()], cwd=root, check=True)

    status, _ = run(tracked=True, lines={"epochs": 2})
    again, _ = run(tracked=True)

    asked = ["git", "status", "--porcelain", "--untracked-files=all"]
    done = subprocess.run(asked, cwd=root, check=True, capture_output=True, text=True)
    assert done.stdout == ""
    assert len(status.commit) == 40
    assert again.commit == status.commit


def test_a_session_is_not_tracked_without_mlflow(run, monkeypatch, tmp_path):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name in {"mlflow", "tensorboard"} else find(name, *more),
    )

    status, _ = run(tracked=True)

    assert status.state is SessionState.EVALUATED
    assert {path.name for path in (tmp_path / "project" / "runs").iterdir()} == {"first"}


def test_a_model_that_cannot_be_exported_is_refused_before_the_first_step(run):
    by_numpy = """
    class ByNumPy(Builder):
        def get_compiled_model(self):
            import keras

            class Doubled(keras.layers.Layer):
                def call(self, x):
                    return keras.ops.convert_to_tensor(np.asarray(x) * 2)
                def compute_output_spec(self, x):
                    return keras.KerasTensor(x.shape, x.dtype)

            model = keras.Sequential([keras.Input((1,)), Doubled(), keras.layers.Dense(1)])
            model.compile(optimizer="sgd", loss="mse")
            return model
    """

    with pytest.raises(DefinitionError, match=r"cannot be exported as saved_model: .*[Nn]um[Pp]y"):
        run(by_numpy, lines={"model_builder_class": "parts.ByNumPy"})
