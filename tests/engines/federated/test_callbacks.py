"""Callbacks of a party do what they would do if it trained alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.engines.conftest import MODEL, write_records

from elasticdl import api
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.engines.federated.simulation import simulate
from elasticdl.engines.federated.simulation.simulate import SimulatedMember
from elasticdl.engines.progress_bar import Silent
from elasticdl.event_file import read_events
from elasticdl.events import EpochFinished, RoundFinished
from elasticdl.job import Federation, Job, ModelReference, TrainingOptions

NUM_ROUNDS = 5
CALLBACKS = {
    "a schedule that watches the validation": (
        "keras.callbacks.ReduceLROnPlateau('val_loss', patience=1, min_delta=10.0, verbose=0)"
    ),
    "the end where the validation gets no better": (
        "keras.callbacks.EarlyStopping('val_loss', patience=2, min_delta=10.0)"
    ),
    "the end in the middle of a round": "Stops(epoch=2)",
}
MORE = """

class Stops(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.at = epoch
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch == self.at


class EndsOnce(keras.callbacks.Callback):
    # What EarlyStopping(restore_best_weights=True) does: weights change where a training ends.
    def on_train_end(self, logs=None):
        self.model.set_weights([0 * weights for weights in self.model.get_weights()])


def callbacks():
    return [{}]
"""


@pytest.fixture
def alone_and_federated(tmp_path):
    """Return a function: callback and epochs a round -> the losses and weights of both."""
    data = str(write_records(tmp_path / "train.recordio", 90))
    validation = str(write_records(tmp_path / "test.recordio", 40, seed=5))

    def train(callback, num_local_epochs=1):
        (tmp_path / "small.py").write_text(MODEL + MORE.format(callback))
        num_epochs = NUM_ROUNDS * num_local_epochs
        job = Job(
            command="train",
            data=data,
            output=str(tmp_path / "alone"),
            model=ModelReference(str(tmp_path), "small"),
            validation_data=validation,
            training=TrainingOptions(num_epochs=num_epochs, minibatch_size=16, seed=3),
        )
        api.run(job, Silent())
        federated = replace(
            job,
            output=str(tmp_path / "federated"),
            data="",
            validation_data=None,
            federation=Federation(num_rounds=NUM_ROUNDS, num_local_epochs=num_local_epochs),
        )
        simulate.train(federated, Silent(), [SimulatedMember("one", data, validation)])
        return [
            (losses(each.output, kind), dict(load_trained_model(each.output).params))
            for each, kind in ((job, EpochFinished), (federated, RoundFinished))
        ]

    return train


def losses(output, kind):
    log = read_events(Path(output) / "events.jsonl")
    return [event.metrics.get("loss") for event in log if isinstance(event, kind)]


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for path, array in one.items():
        np.testing.assert_allclose(other[path], array, rtol=0, atol=1e-6, err_msg=path)


@pytest.mark.parametrize("callback", CALLBACKS.values(), ids=CALLBACKS)
def test_a_single_party_stops_as_in_one_process(callback, alone_and_federated):
    (alone, expected), (rounds, found) = alone_and_federated(callback)

    assert_equal(expected, found)
    np.testing.assert_allclose(rounds[: len(alone)], alone, atol=1e-6)


def test_stopping_within_a_round_does_not_restart_training(alone_and_federated):
    (alone, expected), (_, found) = alone_and_federated(
        CALLBACKS["the end in the middle of a round"], 2
    )

    assert len(alone) == 3
    assert_equal(expected, found)


def test_the_end_of_a_round_is_not_the_end_of_a_training(alone_and_federated):
    (_, expected), (_, found) = alone_and_federated("EndsOnce()")

    assert all(np.all(array == 0) for array in expected.values())
    assert any(np.any(array != 0) for array in found.values())
