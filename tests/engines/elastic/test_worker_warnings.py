"""A warning of a worker is read where the command was given."""

import logging

import pytest

from elasticdl.engines.elastic import worker_warnings
from elasticdl.engines.elastic.worker_warnings import WarningLog

_log = logging.getLogger("elasticdl")

COUNTING_LARGE_ROWS = """
class Peaks(keras.layers.Layer):
    def build(self, shape):
        self.peak = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs, training=False):
        if training:
            self.peak.assign(keras.ops.maximum(self.peak, keras.ops.max(inputs)))
        return inputs


small_model = custom_model


def custom_model():
    model = small_model()
    return keras.Sequential([Peaks(), *model.layers])
"""


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_warning_of_two_workers_is_printed_once(train, zoo, caplog):
    zoo(COUNTING_LARGE_ROWS)

    train(num_epochs=1, num_workers=2, global_batch_size=32)

    found = [r.getMessage() for r in caplog.records if "neither by a mean" in r.getMessage()]
    assert len(found) == 1
    assert found[0].startswith(f"{zoo()}/small.py:1: ")


def test_a_warning_passes_once_and_no_more_than_a_hundred_do(caplog):
    with WarningLog().attached() as log:
        _log.warning("%s is odd", "x")
        worker_warnings.repeat(["x is odd", *(f"{number}" for number in range(200))])

    assert log.texts == ("x is odd", *(f"{number}" for number in range(99)))
    assert [record.getMessage() for record in caplog.records] == list(log.texts)


def test_a_program_without_logging_still_sees_warnings(capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging, "lastResort", logging.StreamHandler())
    with WarningLog().attached():
        _log.warning("seen")

    assert capsys.readouterr().err == "seen\n"
