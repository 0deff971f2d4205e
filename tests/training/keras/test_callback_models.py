"""Other models and optimizers that callbacks hold have the same variables after a resume."""

import numpy as np
import pytest
from tests.training.keras.test_callback_references import callback
from tests.training.keras.test_hooks import Checkpointed

X, Y = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)


@pytest.fixture(autouse=True)
def keras():
    import keras

    return keras


def probe(**more):
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.Adam(0.1), "mse", **more)
    return model


def trained(self, epoch, logs=None):
    self.probe.train_on_batch(X, Y)


def run(begin, end=trained):
    """Return the job after an epoch."""
    job = Checkpointed(callback(on_train_begin=begin, on_epoch_end=end))
    job.epoch(0, val_loss=1.0)
    return job


def test_a_compiled_model_resumes_with_its_optimizer_and_its_mean_loss(caplog):
    def begin(self, logs=None):
        self.probe = probe()

    job = run(begin)
    before = job.callbacks[0].probe
    job.resume()
    after = job.callbacks[0].probe

    for mine, theirs in zip(after.optimizer.variables, before.optimizer.variables, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert after.train_on_batch(X, Y) == before.train_on_batch(X, Y)
    assert "resume" not in caplog.text


def test_metrics_that_keras_creates_in_a_step_cause_a_note(caplog):
    def begin(self, logs=None):
        self.probe = probe(metrics=["mae"])

    job = run(begin)
    job.resume()

    assert "a model in self.probe whose metrics Keras creates in its first step" in caplog.text


def test_a_model_that_shares_a_layer_with_the_trained_one_resumes_with_its_own(keras):
    def begin(self, logs=None):
        (layer,) = self.model.layers
        x = keras.Input(self.model.input_shape[1:])
        self.probe = keras.Model(x, keras.layers.Dense(1, kernel_initializer="ones")(layer(x)))

    def end(self, epoch, logs=None):
        self.probe.layers[-1].bias.assign([7.0])

    job = run(begin, end)
    job.resume()

    assert job.callbacks[0].probe.layers[-1].bias.numpy() == 7.0


def test_a_model_that_a_callback_creates_later_causes_a_warning(caplog):
    def end(self, epoch, logs=None):
        self.probe = probe()

    job = run(lambda self, logs=None: None, end)
    job.hooks.state()

    assert "Own has in self.probe a model or optimizer that did not have these" in caplog.text
