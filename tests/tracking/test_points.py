"""Events become points, and an end becomes a status."""

import math

import numpy as np
import pytest

from elasticdl.events import (
    Checkpointed,
    EpochFinished,
    Evaluated,
    JobFailed,
    JobFinished,
    JobStarted,
    StepCommitted,
)
from elasticdl.tracking.points import Points, flat, status_of
from elasticdl.tracking.tracker import Kind, MetricPoint, RunStatus


def test_validation_and_training_metrics_are_distinguished():
    event = EpochFinished(epoch=2, step=30, metrics={"loss": 0.5, "val_loss": 0.7}, time=9.0)

    assert Points().take(event) == MetricPoint(Kind.EPOCH, 30, 2, 9.0, {"loss": 0.5}, {"loss": 0.7})


def test_an_evaluation_is_a_point_at_its_step():
    event = Evaluated(epoch=2, step=25, metrics={"loss": 0.7}, time=9.0)

    assert Points().take(event) == MetricPoint(Kind.EVALUATION, 25, 2, 9.0, {}, {"loss": 0.7})


def committed(step, time, loss=1.0, num_records=10, records_per_s=5.0):
    return StepCommitted(
        step=step,
        epoch=0,
        num_records=num_records,
        loss=loss,
        records_per_s=records_per_s,
        time=time,
    )


def test_steps_of_ten_seconds_are_one_point_weighted_by_records():
    points = Points(interval_s=10)
    points.take(JobStarted(job_id="a", time=100.0))

    assert points.take(committed(1, 104.0, loss=1.0, num_records=30, records_per_s=10.0)) is None
    point = points.take(committed(2, 110.0, loss=5.0, num_records=10, records_per_s=2.0))

    assert point == MetricPoint(Kind.STEPS, 2, 0, 110.0, {"loss": 2.0, "records_per_s": 5.0})
    assert points.take(committed(3, 119.0)) is None


def test_steps_before_a_restart_are_not_in_its_points():
    points = Points(interval_s=10)
    points.take(committed(50, 105.0, loss=100.0))
    points.take(JobStarted(job_id="a", resumed_from_step=40, time=200.0))

    point = points.take(committed(41, 210.0, loss=1.0))

    assert point.training["loss"] == 1.0


@pytest.mark.parametrize(
    "event", [Checkpointed(step=1, blocked_s=0.0, num_bytes=1), JobFinished(step=1)]
)
def test_other_events_give_no_point(event):
    assert Points().take(event) is None


def test_lists_become_numbers_with_distinct_names():
    assert flat({"iou": np.array([[1, 2], [3, 4]]), "iou_0_1": 5}) == {
        "iou_0_0": 1,
        "iou_0_1_": 2,
        "iou_1_0": 3,
        "iou_1_1": 4,
        "iou_0_1": 5,
    }


def test_nan_is_kept_as_a_value():
    assert math.isnan(flat({"f1": math.nan})["f1"])


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (JobFinished(step=1), (RunStatus.FINISHED, "")),
        (JobFailed(kind="Interrupted", message=""), (RunStatus.KILLED, "")),
        (JobFailed(kind="DataError", message="gone"), (RunStatus.FAILED, "DataError: gone")),
        (JobStarted(job_id="a"), None),
    ],
)
def test_the_final_status_follows_from_the_last_event(event, expected):
    assert status_of(event) == expected
