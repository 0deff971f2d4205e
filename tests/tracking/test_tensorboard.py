"""Curves are drawn by TensorBoard as Keras' own would be; real TensorBoard reads them."""

import itertools
import math

import pytest

from elasticdl.artifacts.folder import OutputFolder
from elasticdl.tracking import tensorboard
from elasticdl.tracking.tensorboard import TensorBoardTracker
from elasticdl.tracking.tracker import Kind, MetricPoint, RunStatus, TrackedAttempt

ATTEMPT = TrackedAttempt(1, "train-1", "run")


def epoch(number, loss=0.5):
    return MetricPoint(Kind.EPOCH, 10, number, 6.0, {"loss": loss}, {"loss": 2 * loss})


def test_training_and_validation_share_a_chart_with_keras_names(tmp_path, curves_in):
    tracker = TensorBoardTracker(OutputFolder(tmp_path))
    tracker.start(ATTEMPT)
    tracker.point(MetricPoint(Kind.STEPS, 4, 0, 4.0, {"loss": 4.0, "records_per_s": 8.0}))
    tracker.point(MetricPoint(Kind.EVALUATION, 5, 0, 5.0, {}, {"loss": 1.0}))
    tracker.point(epoch(0))
    tracker.end(RunStatus.FINISHED)

    assert curves_in(tmp_path) == {
        "train/batch_loss": [(4, 4.0)],
        "train/records_per_s": [(4, 8.0)],
        "train/epoch_loss": [(0, 0.5)],
        "validation/evaluation_loss_vs_iterations": [(5, 1.0)],
        "validation/epoch_loss": [(0, 1.0)],
    }


def test_a_torn_file_of_a_dead_attempt_is_rewritten(tmp_path, curves_in):
    first = TensorBoardTracker(OutputFolder(tmp_path))
    first.start(ATTEMPT)
    first.point(epoch(0))
    (file,) = (tmp_path / "logs" / "train").iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    users = tmp_path / "logs" / "train" / "events.out.tfevents.1.users"
    users.write_bytes(b"")

    second = TensorBoardTracker(OutputFolder(tmp_path))
    second.start(ATTEMPT)
    for number in range(3):
        second.point(epoch(number))

    assert curves_in(tmp_path)["train/epoch_loss"] == [(0, 0.5), (1, 0.5), (2, 0.5)]
    assert users.exists(), "A file of somebody else's was taken away"


def test_viewers_see_a_new_attempt_continue(tmp_path, monkeypatch):
    # In one second, and with numbers of one and of two digits.
    monkeypatch.setattr(tensorboard, "_numbers", itertools.count(9))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = TensorBoardTracker(OutputFolder(tmp_path))
    first.start(ATTEMPT)
    for number in range(3):
        first.point(epoch(number))
    watching = EventAccumulator(str(tmp_path / "logs" / "train"), size_guidance={"scalars": 0})
    watching.Reload()
    second = TensorBoardTracker(OutputFolder(tmp_path))
    second.start(ATTEMPT)
    for number in range(4):
        second.point(epoch(number))
    watching.Reload()

    assert [item.step for item in watching.Scalars("epoch_loss")] == [0, 1, 2, 3]


def test_nan_is_written(tmp_path, curves_in):
    tracker = TensorBoardTracker(OutputFolder(tmp_path))
    tracker.start(ATTEMPT)
    tracker.point(epoch(0, math.nan))

    ((step, value),) = curves_in(tmp_path)["train/epoch_loss"]
    assert (step, math.isnan(value)) == (0, True)


def test_a_remote_output_gets_event_files_at_the_end():
    folder = OutputFolder("memory://tensorboard-test")
    tracker = TensorBoardTracker(folder)
    tracker.start(ATTEMPT)
    tracker.point(epoch(0))
    tracker.end(RunStatus.FINISHED)

    (name,) = folder.list("logs/validation")
    assert len(folder.read_bytes(f"logs/validation/{name}")) > 40
    TensorBoardTracker(folder).start(ATTEMPT)
    assert folder.list("logs/validation") == []


@pytest.mark.parametrize("module", ["tensorflow", "torch"])
def test_no_framework_is_imported(run_python, tmp_path, module):
    code = (
        "from elasticdl.artifacts.folder import OutputFolder\n"
        "from elasticdl.tracking.tensorboard import TensorBoardTracker\n"
        "from elasticdl.tracking.tracker import *\n"
        f"tracker = TensorBoardTracker(OutputFolder({str(tmp_path)!r}))\n"
        "tracker.point(MetricPoint(Kind.EPOCH, 1, 0, 1.0, {'loss': 1.0}))\n"
        f"import sys; print({module!r} in sys.modules)"
    )

    assert run_python(code).stdout.strip() == "False"
