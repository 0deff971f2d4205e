"""Methods of the model that do not work in a callback raise there, and say what to use."""

import numpy as np
import pytest
from tests.training.keras.test_hooks import Checkpointed

from elasticdl.errors import UserCodeError


@pytest.fixture(autouse=True)
def keras():
    import keras

    return keras


class Measuring:
    """Makes callbacks that call a method of the model at the end of an epoch."""

    def __init__(self, keras, method):
        class Measures(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                getattr(self.model, method)(np.zeros((2, 3), np.float32), np.zeros((2, 1)))

        self.create = lambda: [Measures()]


@pytest.mark.parametrize("method", ["evaluate", "fit", "train_on_batch", "test_on_batch"])
def test_evaluating_the_model_in_a_callback_is_refused_with_the_line(keras, method):
    hooks = Checkpointed(Measuring(keras, method).create).hooks

    with pytest.raises(
        UserCodeError, match=rf"test_model_in_callbacks.py(?s:.*)model\.{method}\(\) does not"
    ):
        hooks.epoch_end(0, {"loss": 1.0})


@pytest.mark.parametrize(
    "read",
    [
        lambda model: model.get_metrics_result(),
        lambda model: model.metrics[0].result(),
        lambda model: model.compute_loss(y=np.zeros((2, 1)), y_pred=np.zeros((2, 1))),
    ],
)
def test_reading_the_models_loss_and_metrics_in_a_callback_is_refused(keras, read):
    end = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: read(end.model))
    hooks = Checkpointed(lambda: [end]).hooks

    with pytest.raises(
        UserCodeError, match=r"test_model_in_callbacks.py(?s:.*)in a callback here(?s:.*)logs"
    ):
        hooks.epoch_end(0, {"loss": 1.0})
