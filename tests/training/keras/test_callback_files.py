"""What callbacks write, when several workers call them and the one that writes may die."""

import csv

import numpy as np
import pytest
from tests.training.keras.test_hooks import Checkpointed


class Fleet:
    """Workers that call the same callbacks; commits lie between, and the lowest of them leads.

    Args:
        create: Makes the callbacks.
        count: How many workers there are.
    """

    def __init__(self, create, count=2):
        self.workers = []
        for _ in range(count):
            self.join(create)
        self.commit()

    def join(self, create):
        # Who leads is known from the first commit on.
        self.workers.append(Checkpointed(create, leads=False))

    def commit(self):
        for number, worker in enumerate(self.workers):
            worker.hooks.committed(leads=number == 0)

    def epoch(self, epoch, lost=()):
        for worker in self.workers:
            worker.epoch(epoch, loss=0.5, val_loss=1.0)
        self.workers = [w for number, w in enumerate(self.workers) if number not in lost]
        self.commit()


def rows_in(path):
    return [row["epoch"] for row in csv.DictReader(path.read_text().splitlines())]


def logger_in(folder, **options):
    import keras

    return lambda: [keras.callbacks.CSVLogger(folder / "log.csv", **options)]


def test_rows_of_a_log_are_written_once_by_all_workers(tmp_path):
    fleet = Fleet(logger_in(tmp_path), count=3)
    for epoch in range(3):
        fleet.epoch(epoch)

    assert rows_in(tmp_path / "log.csv") == ["0", "1", "2"]


def test_a_replacement_writes_the_row_missing_from_a_dead_worker(tmp_path):
    fleet = Fleet(logger_in(tmp_path))
    fleet.epoch(0)
    log = (tmp_path / "log.csv").read_bytes()
    fleet.epoch(1, lost=[0])
    # As if the first worker had died before it wrote the second row, or within it.
    whole = (tmp_path / "log.csv").read_bytes()
    fleet.epoch(2)

    assert whole.startswith(log)
    assert rows_in(tmp_path / "log.csv") == ["0", "1", "2"]


def test_a_worker_without_the_log_file_writes_all_of_it(tmp_path):
    fleet = Fleet(logger_in(tmp_path))
    fleet.epoch(0)
    (tmp_path / "log.csv").unlink()
    fleet.epoch(1, lost=[0])

    assert rows_in(tmp_path / "log.csv") == ["0", "1"]


def test_rows_after_a_checkpoint_are_replaced_and_older_ones_kept(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("epoch,loss,val_loss\r\n7,1,1\r\n")
    job = Checkpointed(logger_in(tmp_path, append=True))
    job.epoch(0, loss=0.5, val_loss=1.0)
    checkpoint = job.hooks.state(), job.hooks.arrays()
    job.epoch(1, loss=0.5, val_loss=1.0)
    job.start(resumes=True)
    job.hooks.load_state(*checkpoint)
    job.epoch(1, loss=0.5, val_loss=1.0)

    assert rows_in(log) == ["7", "0", "1"]


def saving(path):
    import keras

    class Saving(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.save_weights(path.with_name(f"{epoch}.weights.h5"), overwrite=True)

    return lambda: [Saving()]


def test_a_model_saved_by_callbacks_is_written_by_one_worker(tmp_path):
    fleet = Fleet(saving(tmp_path / "any"))
    leader, other = fleet.workers
    other.epoch(0, val_loss=1.0)
    written = sorted(tmp_path.iterdir())
    leader.epoch(0, val_loss=1.0)

    assert written == []
    assert [path.name for path in tmp_path.iterdir()] == ["0.weights.h5"]


def test_a_model_of_a_dead_worker_is_published_by_the_next(tmp_path):
    fleet = Fleet(saving(tmp_path / "any"))
    _, other = fleet.workers
    other.epoch(0, val_loss=1.0)
    expected = other.trainer.model.get_weights()
    # The file is torn: its writer died.
    (tmp_path / "0.weights.h5").write_bytes(b"torn")
    fleet.workers = [other]
    other.trainer.model.set_weights([0 * array for array in expected])
    fleet.commit()

    other.trainer.model.load_weights(tmp_path / "0.weights.h5")
    for mine, theirs in zip(other.trainer.model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_saved_model_is_dropped_if_the_leader_committed(tmp_path):
    fleet = Fleet(saving(tmp_path / "any"))
    _, other = fleet.workers
    other.epoch(0, val_loss=1.0)
    fleet.commit()
    fleet.workers = [other]
    fleet.commit()

    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_takes_over_a_state_drops_its_early_saves(tmp_path):
    import keras

    class Saving(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.model.save_weights(tmp_path / "first.weights.h5", overwrite=True)

    fleet = Fleet(lambda: [Saving()], count=1)
    (tmp_path / "first.weights.h5").unlink()
    leader = fleet.workers[0]
    fleet.join(lambda: [Saving()])
    joined = fleet.workers[1]
    joined.hooks.load_state(leader.hooks.state(), leader.hooks.arrays())
    fleet.workers = [joined]
    fleet.commit()

    assert list(tmp_path.iterdir()) == []


def points_in(folder):
    import tensorflow as tf

    return sorted(
        (file.parent.name, value.tag, event.step)
        for file in folder.rglob("*tfevents*")
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
    )


@pytest.mark.parametrize("lost", [None, 1])
def test_one_worker_writes_tensorboard_events_even_after_a_death(tmp_path, lost):
    import keras

    def create(name):
        return lambda: [keras.callbacks.TensorBoard(tmp_path / name, histogram_freq=1)]

    alone, fleet = Checkpointed(create("alone")), Fleet(create("fleet"))
    for epoch in range(3):
        alone.epoch(epoch, loss=0.5, val_loss=1.0)
        if epoch == lost:
            # The first worker dies before it writes this epoch.
            fleet.workers = fleet.workers[1:]
        fleet.epoch(epoch)
    alone.finish()
    for worker in fleet.workers:
        worker.finish()

    assert points_in(tmp_path / "fleet") == points_in(tmp_path / "alone")


def test_a_custom_save_method_is_restored_after_callbacks(tmp_path):
    fleet = Fleet(saving(tmp_path / "any"))
    _, other = fleet.workers
    model = other.trainer.model
    own = model.save_weights
    vars(model)["save_weights"] = own
    other.epoch(0, val_loss=1.0)

    assert vars(model)["save_weights"] is own
