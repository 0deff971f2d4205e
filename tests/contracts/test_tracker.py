"""Every tracker keeps the laws of `tracking/tracker.py`."""

import itertools

import pytest

from elasticdl.artifacts.folder import OutputFolder
from elasticdl.job import Tracking
from elasticdl.testing.memory_tracker import MemoryTracker
from elasticdl.testing.tracker import Shown, check_tracker
from elasticdl.tracking.mlflow import MlflowTracker
from elasticdl.tracking.tensorboard import TensorBoardTracker
from elasticdl.tracking.tracker import Kind


class Memory:
    def __init__(self, folder):
        self.runs = {}

    def open(self):
        return MemoryTracker(self.runs)

    def read(self):
        run = list(self.runs.values())[-1]
        curves = {}
        for (kind, at), point in run.points.items():
            values = point.validation if kind is Kind.EVALUATION else point.training
            for name, value in values.items():
                curves.setdefault(f"{kind.value} {name}", []).append((at, value))
        return Shown(len(self.runs), curves, run.status)


class Mlflow:
    """An experiment of its own in one database: making a database takes a second or two."""

    numbers = itertools.count()

    def __init__(self, folder, database):
        self.folder = folder
        self.tracking = Tracking(str(database), f"experiment {next(self.numbers)}")

    def open(self):
        return MlflowTracker(self.tracking, OutputFolder(self.folder), print)

    def read(self):
        from mlflow.tracking import MlflowClient

        client = MlflowClient(f"sqlite:///{self.tracking.uri}/mlflow.db")
        experiment = client.get_experiment_by_name(self.tracking.experiment)
        runs = client.search_runs([experiment.experiment_id], order_by=["start_time DESC"])
        run_id = runs[0].info.run_id
        curves = {
            key: [(item.step, item.value) for item in client.get_metric_history(run_id, key)]
            for key in runs[0].data.metrics
            # The tracker's own: it counts epochs, which nobody told it.
            if key != "epoch"
        }
        return Shown(len(runs), curves, runs[0].info.status)


class TensorBoard:
    def __init__(self, folder):
        self.folder = folder

    def open(self):
        return TensorBoardTracker(OutputFolder(self.folder))

    def read(self):
        return Shown(1, read_curves(self.folder))


def read_curves(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = {}
    for part in folder.glob("logs/*"):
        accumulator = EventAccumulator(str(part), size_guidance={"scalars": 0})
        accumulator.Reload()
        for tag in accumulator.Tags()["scalars"]:
            points = [(item.step, item.value) for item in accumulator.Scalars(tag)]
            curves[f"{part.name}/{tag}"] = points
    return curves


@pytest.fixture
def folders(tmp_path):
    return (tmp_path / str(number) for number in itertools.count())


def test_the_in_memory_tracker_satisfies_the_contract(folders):
    check_tracker(lambda: Memory(next(folders)))


def test_the_mlflow_tracker_satisfies_the_contract(folders, tmp_path):
    check_tracker(lambda: Mlflow(next(folders), tmp_path / "runs"))


def test_the_tensorboard_tracker_satisfies_the_contract(folders):
    check_tracker(lambda: TensorBoard(next(folders)))
